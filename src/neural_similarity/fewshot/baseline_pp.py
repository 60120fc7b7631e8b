"""Baseline++: a classifier by angles (Chen and others, 2019, "A closer look at few-shot ...")."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .learner import Learner
from .registry import register_method
from .tuning import SupportSGD, one_hot

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
class BaselinePP(SupportSGD):
    """Finetuning in which class and image are compared by their angle, in training and after.

    A new classifier begins at the mean of the support images' directions, as a vector of length
    zero has no angle. It is tuned with the scale that training ended with.

    Args:
        scale: α to begin with.
    """

    scale: float = 10.0

    name: ClassVar[str] = "baseline_pp"
    trains_on: ClassVar[Literal["images", "episodes"]] = "images"

    def head(self, learner: Learner, num_classes: int) -> nn.Module:
        return CosineClassifier(learner.num_features, num_classes, self.scale)

    @torch.no_grad()
    def feature_scores(self, learner: Learner, support: Tensor, query: Tensor) -> Tensor:
        scale = cast(CosineClassifier, learner.head).scale
        n_way, n_shot = support.shape[1:3]
        X = F.normalize(support.flatten(1, 2), dim=-1)
        products, labels = X @ X.mT, one_hot(n_way, n_shot, X)

        def gradients(tensors: list[Tensor], rows: Tensor) -> list[Tensor]:
            (A,) = tensors  # the classes' vectors are w = Aᵀ X
            dots = products @ A
            lengths = _lengths(A, dots)
            cosines = dots.index_select(1, rows) / lengths
            wrong = scale / len(rows) * ((scale * cosines).softmax(-1) - labels[rows])
            # d cos(x, w) / dw = (x − cos(x, w) w/‖w‖) / ‖w‖, in coefficients of X.
            along = (wrong * cosines).sum(1, keepdim=True) * (A / lengths)
            return [(-along).index_add_(1, rows, wrong) / lengths]

        start = (labels / n_shot).repeat(len(X), 1, 1)
        (A,) = self.descend([start], gradients, X.shape[1])
        directions = A / _lengths(A, products @ A)
        scores: Tensor = F.normalize(query, dim=-1) @ X.mT @ directions
        return scores * scale

    def adapted(self, learner: Learner, n_way: int) -> int:
        return n_way * learner.num_features


def _lengths(A: Tensor, dots: Tensor) -> Tensor:
    """``‖w‖`` of ``w = Aᵀ X``, where ``dots = X w``."""
    return (A * dots).sum(1, keepdim=True).clamp_min(1e-24).sqrt()
