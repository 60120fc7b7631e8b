"""A linear classifier on features, tuned on the support set: shared by several methods."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..inner_loop.support_sgd import Start, SupportSGD, dots_of, one_hot, products_of
from ..network import FewShotNetwork
from .base import FeatureMethod

__all__ = ["TunedClassifier"]


@dataclass(frozen=True)
class TunedClassifier(SupportSGD, FeatureMethod):
    """A new linear classifier on the features, tuned on the support set of every episode.

    Args:
        start: where it begins: ``"zero"``; or ``"prototypes"``, weights ``2 p`` and biases
            ``−‖p‖²``, which classify by the nearest prototype p.
    """

    start: Start = "zero"

    @torch.no_grad()
    def feature_scores(self, network: FewShotNetwork, support: Tensor, query: Tensor) -> Tensor:
        n_way, n_shot = support.shape[1:3]
        X = support.flatten(1, 2)
        products, labels = products_of(X), one_hot(n_way, n_shot, X).unsqueeze(-1)
        A = torch.zeros_like(labels).repeat(1, 1, len(X))
        bias = A.new_zeros(n_way, len(X))
        if self.start == "prototypes":
            A = A + 2 / n_shot * labels
            bias = -(A * dots_of(products, A)).sum(0) / 4

        def gradients(tensors: list[Tensor], rows: Tensor) -> list[Tensor]:
            A, bias = tensors
            scores = dots_of(products[rows], A) + bias
            wrong = (scores.softmax(1) - labels[rows]) / len(rows)
            return [torch.zeros_like(A).index_copy_(0, rows, wrong), wrong.sum(0)]

        A, bias = self.descend([A, bias], gradients, X.shape[1])
        return query @ X.mT @ A.permute(2, 0, 1) + bias.mT.unsqueeze(1)

    def adapted(self, network: FewShotNetwork, n_way: int) -> int:
        return n_way * (network.num_features + 1)
