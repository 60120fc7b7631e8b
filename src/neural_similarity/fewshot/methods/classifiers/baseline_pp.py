"""Baseline++: a cosine classifier (Chen et al., 2019).

Paper: "A Closer Look at Few-shot Classification",
https://arxiv.org/abs/1904.04232.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...inner_loop.support_sgd import SupportSGD, dots_of, one_hot, products_of
from ...network import FewShotNetwork
from ..base import FeatureMethod
from ..registry import register_method

__all__ = ["BaselinePP", "CosineClassifier"]


_LENGTH = 3**-0.5  # the expected length of a row of nn.Linear, with which the authors begin


class CosineClassifier(nn.Module):
    """Scores ``α gᵢ cos(x, wᵢ)``, with a learned length gᵢ for each class."""

    def __init__(self, features: int, classes: int, scale: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(classes, features))
        self.length = nn.Parameter(torch.full((classes,), _LENGTH))
        self.scale = scale

    def forward(self, features: Tensor) -> Tensor:
        cosines = F.linear(F.normalize(features, dim=-1), F.normalize(self.weight, dim=1))
        return self.scale * self.length * cosines


@register_method
@dataclass(frozen=True)
class BaselinePP(SupportSGD, FeatureMethod):
    r"""Finetuning with a classifier that uses cosines, in training and in tests.

    .. math:: s_i = \alpha \, g_i \cos(x, w_i)

    As in the authors' code, α is fixed, and a length :math:`g_i` is learned for each class. Unlike
    there, a new classifier starts at the mean direction of the support images, not at random.

    Args:
        scale: α.
    """

    scale: float = 2.0

    name: ClassVar[str] = "baseline_pp"
    trains_on: ClassVar[Literal["images", "episodes"]] = "images"

    def head(self, network: FewShotNetwork, num_classes: int) -> nn.Module:
        return CosineClassifier(network.num_features, num_classes, self.scale)

    @torch.no_grad()
    def feature_scores(self, network: FewShotNetwork, support: Tensor, query: Tensor) -> Tensor:
        n_way, n_shot = support.shape[1:3]
        X = F.normalize(support.flatten(1, 2), dim=-1)
        products, labels = products_of(X), one_hot(n_way, n_shot, X).unsqueeze(-1)

        def gradients(tensors: list[Tensor], rows: Tensor) -> list[Tensor]:
            A, dots, g = tensors  # of the classes' vectors w = Aᵀ X, and X w
            norms = _norms(A, dots)
            cosines = dots[rows] / norms
            errors = (self.scale * g * cosines).softmax(1) - labels[rows]
            errors *= self.scale / len(rows)
            g_slope = (errors * cosines).sum(0)
            errors *= g / norms
            # d cos(x, w) / dw = (x − cos(x, w) w/‖w‖) / ‖w‖, in coefficients of X.
            along = -(errors * cosines).sum(0) / norms
            slope, dots_slope = (A * along).index_add_(0, rows, errors), dots * along
            for row, error in zip(products[rows], errors, strict=True):
                dots_slope.addcmul_(row.unsqueeze(1), error)
            return [slope, dots_slope, g_slope]

        # Steps are linear, so X w is updated like A, times the products: cheaper than X w anew.
        start = (labels / n_shot).repeat(1, 1, len(X))
        tensors = [start, dots_of(products, start), start.new_full(start.shape[1:], _LENGTH)]
        A, dots, g = self.descend(tensors, gradients, X.shape[1])
        classifiers = (g * A / _norms(A, dots)).permute(2, 0, 1)
        scores: Tensor = F.normalize(query, dim=-1) @ X.mT @ classifiers
        return scores * self.scale

    def adapted(self, network: FewShotNetwork, n_way: int) -> int:
        return n_way * (network.num_features + 1)


def _norms(A: Tensor, dots: Tensor) -> Tensor:
    """``‖w‖`` of ``w = Aᵀ X``, where ``dots = X w``."""
    return (A * dots).sum(0).clamp_min(1e-24).sqrt()
