"""Orthogonal similarity: a rotation of the patch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ._matrices import lower_triangle
from .base import Block, Structure, register

__all__ = ["Orthogonal"]


@register
@dataclass(frozen=True)
class Orthogonal(Structure):
    r""":math:`M = \exp(A - A^\top)`, A strictly lower triangular: :math:`M^\top M = I`.

    n(n-1)/2 parameters. They reach every rotation (determinant one).
    """

    name: ClassVar[str] = "orthogonal"

    def initial(self, block: Block) -> dict[str, Tensor]:
        return {"skew": torch.zeros(block.size * (block.size - 1) // 2)}

    def similarity(self, parameters: Mapping[str, Tensor], block: Block) -> Tensor:
        skew = parameters["skew"]
        # The exponential is not defined for half precision on every device.
        exact = skew.float() if skew.dtype.itemsize < 4 else skew
        lower = lower_triangle(exact, block.size, offset=-1)
        rotation: Tensor = torch.linalg.matrix_exp(lower - lower.mT)
        return rotation.to(skew.dtype)
