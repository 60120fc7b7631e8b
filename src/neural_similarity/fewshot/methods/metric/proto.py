"""Prototypical networks (Snell, Swersky and Zemel, 2017).

Paper: "Prototypical Networks for Few-shot Learning", https://arxiv.org/abs/1703.05175.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ...network import FewShotNetwork
from ..base import FeatureMethod
from ..registry import register_method

__all__ = ["Proto", "squared_distances"]


@register_method
@dataclass(frozen=True)
class Proto(FeatureMethod):
    """A class is the mean of its support features; a query belongs to the nearest class.

    Training on episodes minimises the cross-entropy of the softmax over negative squared
    distances. Nothing is adapted at test time.
    """

    name: ClassVar[str] = "proto"

    def feature_scores(self, network: FewShotNetwork, support: Tensor, query: Tensor) -> Tensor:
        return -squared_distances(query, support.mean(2))


def squared_distances(ours: Tensor, theirs: Tensor) -> Tensor:
    """``‖a − b‖²`` of every pair: ``(B, Q, D)`` and ``(B, W, D)`` to ``(B, Q, W)``.

    Computed from products of vectors, which are moved near zero first: the difference of large
    squares would lose small distances.
    """
    centre = theirs.detach().mean(-2, keepdim=True)
    ours, theirs = ours - centre, theirs - centre
    lengths = ours.square().sum(-1, keepdim=True) + theirs.square().sum(-1).unsqueeze(-2)
    return lengths - 2 * ours @ theirs.mT
