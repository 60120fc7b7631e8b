"""A linear classifier on features, tuned on the support set: shared by several methods.

Paper: it is the Baseline of Chen and others (2019), "A Closer Look at Few-shot Classification",
https://arxiv.org/abs/1904.04232.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..inner_loop.support_sgd import Start, SupportSGD, tune_coefficients
from ..network import FewShotNetwork
from .base import FeatureMethod

__all__ = ["TunedClassifier"]


@dataclass(frozen=True)
class TunedClassifier(SupportSGD, FeatureMethod):
    """A new linear classifier on the features, tuned on the support set of every episode.

    Args:
        start: where it starts: ``"zero"``; ``"prototypes"``, weights ``2 p`` and biases
            ``−‖p‖²``, which classify by the nearest prototype p; or ``"tuned"``, a classifier that
            the paper's steps have tuned on the features, from zero.
    """

    start: Start = "zero"

    @torch.no_grad()
    def feature_scores(self, network: FewShotNetwork, support: Tensor, query: Tensor) -> Tensor:
        X = support.flatten(1, 2)
        A, bias = tune_coefficients(X, support.shape[1], support.shape[2], self.start, [self])
        return query @ X.mT @ A.permute(2, 0, 1) + bias.mT.unsqueeze(1)

    def adapted(self, network: FewShotNetwork, n_way: int) -> int:
        return n_way * (network.num_features + 1)
