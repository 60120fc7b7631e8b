"""Baseline++: a cosine classifier (Chen et al., 2019).

Paper: "A Closer Look at Few-shot Classification",
https://arxiv.org/abs/1904.04232.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...inner_loop.support_sgd import SupportSGD, dots_of, one_hot, products_of
from ...network import FewShotNetwork
from ..base import FeatureMethod
from ..registry import register_method

__all__ = ["BaselinePP", "CosineClassifier"]


class CosineClassifier(nn.Module):
    """Scores ``α cos(x, w)``, with α learned."""

    def __init__(self, features: int, classes: int, scale: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(classes, features))
        self.scale = nn.Parameter(torch.tensor(scale))

    def forward(self, features: Tensor) -> Tensor:
        return self.scale * F.linear(F.normalize(features, dim=-1), F.normalize(self.weight, dim=1))


@register_method
@dataclass(frozen=True)
class BaselinePP(SupportSGD, FeatureMethod):
    """Finetuning with a classifier that uses cosines, in training and in tests.

    A new classifier starts at the mean direction of the support images, because a zero vector has
    no direction. It is tuned with the scale learned in training. The authors' code has a fixed
    scale of 2 and a learned norm for each class instead.

    Args:
        scale: the initial α.
    """

    scale: float = 10.0

    name: ClassVar[str] = "baseline_pp"
    trains_on: ClassVar[Literal["images", "episodes"]] = "images"

    def head(self, network: FewShotNetwork, num_classes: int) -> nn.Module:
        return CosineClassifier(network.num_features, num_classes, self.scale)

    @torch.no_grad()
    def feature_scores(self, network: FewShotNetwork, support: Tensor, query: Tensor) -> Tensor:
        scale = cast(CosineClassifier, network.head).scale
        n_way, n_shot = support.shape[1:3]
        X = F.normalize(support.flatten(1, 2), dim=-1)
        products, labels = products_of(X), one_hot(n_way, n_shot, X).unsqueeze(-1)

        def gradients(tensors: list[Tensor], rows: Tensor) -> list[Tensor]:
            A, dots = tensors  # of the classes' vectors w = Aᵀ X, and X w
            lengths = _lengths(A, dots)
            cosines = dots[rows] / lengths
            errors = (scale * cosines).softmax(1) - labels[rows]
            errors *= scale / len(rows) / lengths
            # d cos(x, w) / dw = (x − cos(x, w) w/‖w‖) / ‖w‖, in coefficients of X.
            along = -(errors * cosines).sum(0) / lengths
            slope, dots_slope = (A * along).index_add_(0, rows, errors), dots * along
            for row, error in zip(products[rows], errors, strict=True):
                dots_slope.addcmul_(row.unsqueeze(1), error)
            return [slope, dots_slope]

        # Steps are linear, so X w is updated like A, times the products: cheaper than X w anew.
        start = (labels / n_shot).repeat(1, 1, len(X))
        A, dots = self.descend([start, dots_of(products, start)], gradients, X.shape[1])
        directions = (A / _lengths(A, dots)).permute(2, 0, 1)
        scores: Tensor = F.normalize(query, dim=-1) @ X.mT @ directions
        return scores * scale

    def adapted(self, network: FewShotNetwork, n_way: int) -> int:
        return n_way * network.num_features


def _lengths(A: Tensor, dots: Tensor) -> Tensor:
    """``‖w‖`` of ``w = Aᵀ X``, where ``dots = X w``."""
    return (A * dots).sum(0).clamp_min(1e-24).sqrt()
