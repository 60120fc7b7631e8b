"""Sparsity-one similarity: every kernel tap looks at exactly one tap of the patch (Section 3.4)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ._matrices import straight_through
from .base import Block, Structure, register

__all__ = ["Shift"]


@register
@dataclass(frozen=True)
class Shift(Structure):
    """Row i of M is one-hot at the largest of its n scores, so M moves taps and does nothing else.

    The gradient of M goes to the scores unchanged (the straight-through estimator of `Bengio et
    al., 2013 <https://arxiv.org/abs/1308.3432>`_). When all rows choose the same tap, the layer is
    a 1×1 convolution of a shifted image. Merging leaves a kernel that is zero except at the chosen
    taps.
    """

    name: ClassVar[str] = "shift"

    @property
    def is_straight_through(self) -> bool:
        return True

    def initial(self, block: Block) -> dict[str, Tensor]:
        return {"score": torch.eye(block.size)}

    def similarity(self, parameters: Mapping[str, Tensor], block: Block) -> Tensor:
        score = parameters["score"]
        index = score.detach().argmax(dim=-1, keepdim=True)
        return straight_through(torch.zeros_like(score).scatter(-1, index, 1), score)
