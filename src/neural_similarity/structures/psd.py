"""Positive semi-definite similarity by its Cholesky factor (Section 3.4)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ._matrices import lower_triangle, packed_identity
from .base import Block, Structure, register

__all__ = ["PositiveSemidefinite"]


@register
@dataclass(frozen=True)
class PositiveSemidefinite(Structure):
    r""":math:`M = L L^\top` with L lower triangular: a metric on patches, n(n+1)/2 parameters.

    The diagonal of L may have any sign: M is positive semi-definite in any case.
    """

    name: ClassVar[str] = "psd"

    def initial(self, block: Block) -> dict[str, Tensor]:
        return {"cholesky": packed_identity(block.size)}

    def similarity(self, parameters: Mapping[str, Tensor], block: Block) -> Tensor:
        factor = lower_triangle(parameters["cholesky"], block.size)
        return factor @ factor.mT
