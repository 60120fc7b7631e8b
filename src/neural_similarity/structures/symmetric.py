"""Symmetric similarity (Section 3.4, structural regularization)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ._matrices import lower_triangle, packed_identity
from .base import Block, Structure, register

__all__ = ["Symmetric"]


@register
@dataclass(frozen=True)
class Symmetric(Structure):
    """:math:`M = Mᵀ`: the n(n+1)/2 parameters on and below the diagonal."""

    name: ClassVar[str] = "symmetric"

    def initial(self, block: Block) -> dict[str, Tensor]:
        return {"lower": packed_identity(block.size)}

    def similarity(self, parameters: Mapping[str, Tensor], block: Block) -> Tensor:
        lower = lower_triangle(parameters["lower"], block.size)
        return lower + lower.tril(-1).mT
