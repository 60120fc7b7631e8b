"""Baseline++: a classifier by angles (Chen and others, 2019, "A closer look at few-shot ...")."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..inner_loop.support_sgd import SupportSGD, dots_of, one_hot, products_of
from ..network import FewShotNetwork
from .base import FeatureMethod
from .registry import register_method

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
    """Finetuning in which class and image are compared by their angle, in training and after.

    A new classifier begins at the mean of the support images' directions, as a vector of length
    zero has no angle. It is tuned with the scale that training ended with.

    Args:
        scale: α to begin with.
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
            wrong = (scale * cosines).softmax(1) - labels[rows]
            wrong *= scale / len(rows) / lengths
            # d cos(x, w) / dw = (x − cos(x, w) w/‖w‖) / ‖w‖, in coefficients of X.
            along = -(wrong * cosines).sum(0) / lengths
            slope, moved = (A * along).index_add_(0, rows, wrong), dots * along
            for row, error in zip(products[rows], wrong, strict=True):
                moved.addcmul_(row.unsqueeze(1), error)
            return [slope, moved]

        # Steps are linear: X w takes those of A times the products, cheaper than anew each time.
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
