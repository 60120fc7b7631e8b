"""What methods with a linear classifier on the features of a network share."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ...batches import query_labels
from ...inner_loop.support_sgd import Start, SupportSGD, tune_coefficients
from ...network import FewShotNetwork
from ..base import FeatureMethod

__all__ = ["FittedClassifier", "TunedClassifier"]


@dataclass(frozen=True)
class TunedClassifier(SupportSGD, FeatureMethod):
    """A new linear classifier on the features, tuned on the support set of every episode.

    It is the Baseline of Chen et al. (2019), "A Closer Look at Few-shot Classification",
    https://arxiv.org/abs/1904.04232.

    Args:
        start: where it starts: ``"zero"``; ``"prototypes"``, weights ``2 p`` and biases
            ``−‖p‖²``, which classify by the nearest prototype p; or ``"tuned"``, the result of the
            paper's tuning on the features, from zero.
    """

    start: Start = "zero"

    @torch.no_grad()
    def feature_scores(self, network: FewShotNetwork, support: Tensor, query: Tensor) -> Tensor:
        X = support.flatten(1, 2)
        A, bias = tune_coefficients(X, support.shape[1], support.shape[2], self.start, [self])
        return query @ X.mT @ A.permute(2, 0, 1) + bias.mT.unsqueeze(1)

    def adapted(self, network: FewShotNetwork, n_way: int) -> int:
        return n_way * (network.num_features + 1)


@dataclass(frozen=True)
class FittedClassifier(FeatureMethod):
    """A network trained on base classes; new classes by a linear classifier on its features.

    All weights of the classifier are fitted at once, as the minimum of a convex function.
    """

    trains_on: ClassVar[Literal["images", "episodes"]] = "images"
    unit: ClassVar[bool] = True
    """Whether features are scaled to unit length."""

    @abstractmethod
    def fit(
        self, network: FewShotNetwork, features: Tensor, labels: Tensor, n_way: int
    ) -> tuple[Tensor, Tensor]:
        """Weight ``(B, n_way, D)`` and bias ``(B, n_way)`` for features ``(B, n, D)``."""

    @torch.no_grad()
    def feature_scores(self, network: FewShotNetwork, support: Tensor, query: Tensor) -> Tensor:
        n_way, n_shot = support.shape[1:3]
        X, new = support.flatten(1, 2), query
        if self.unit:
            X, new = F.normalize(X, dim=-1), F.normalize(new, dim=-1)
        weight, bias = self.fit(network, X, query_labels(n_way, n_shot, X.device), n_way)
        return new @ weight.mT + bias.unsqueeze(-2)

    def adapted(self, network: FewShotNetwork, n_way: int) -> int:
        return n_way * (network.num_features + 1)
