"""Hard sparsity: only the largest entries of M count (Section 3.4)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from .. import _check
from ..errors import ShapeError
from ._matrices import straight_through
from .base import Block, Structure, register

__all__ = ["Sparse"]


@register
@dataclass(frozen=True)
class Sparse(Structure):
    """The ``keep`` share of entries that are largest in magnitude; the others are zero.

    Each of the n² parameters receives the gradient of its entry of M, unchanged (the
    straight-through estimator of `Bengio et al., 2013 <https://arxiv.org/abs/1308.3432>`_), so an
    entry that is off can grow and return. Among equal magnitudes the diagonal is kept first, so M
    starts at the identity whenever ``keep`` leaves room for it (at least 1/n).
    """

    name: ClassVar[str] = "sparse"
    keep: float = 0.5

    @property
    def is_straight_through(self) -> bool:
        return True

    def check(self, block: Block, where: str) -> None:
        _check.real_numbers(where, keep=self.keep)
        if not 0 < self.keep <= 1:
            raise ShapeError(f"{where}: expected keep above 0 and up to 1, got {self.keep}.")

    def kept_entries(self, block: Block) -> int:
        """How many entries of M may differ from zero, at least one."""
        return max(1, round(self.keep * block.size**2))

    def initial(self, block: Block) -> dict[str, Tensor]:
        return {"matrix": torch.eye(block.size)}

    def starts_at_identity(self, block: Block) -> bool:
        return self.kept_entries(block) >= block.size

    def similarity(self, parameters: Mapping[str, Tensor], block: Block) -> Tensor:
        matrix = parameters["matrix"]
        return straight_through(matrix * self._mask(matrix.detach(), block), matrix)

    def _mask(self, matrix: Tensor, block: Block) -> Tensor:
        n = block.size
        position = torch.arange(n * n, device=matrix.device)
        diagonal_first = (position % (n + 1) != 0).to(torch.uint8).argsort(stable=True)
        magnitude = matrix.abs().flatten(-2)[..., diagonal_first]
        order = magnitude.argsort(dim=-1, descending=True, stable=True)
        entries = diagonal_first[order[..., : self.kept_entries(block)]]
        mask = torch.zeros_like(magnitude).scatter(-1, entries, 1)
        return mask.reshape(matrix.shape)
