"""Dilation as a similarity: a large kernel in which only a regular grid of taps counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from .. import _check
from ..errors import ShapeError
from .base import Block, Structure, register

__all__ = ["Dilated"]


@register
@dataclass(frozen=True)
class Dilated(Structure):
    """A diagonal that is zero except at every ``dilation``-th tap; one parameter per remaining tap.

    With it, a 5×5 kernel equals a 3×3 kernel of dilation 2 (Section 3.4), as in `dilated
    convolutions <https://arxiv.org/abs/1511.07122>`_. It removes taps by definition, so it does
    not start at the identity.
    """

    name: ClassVar[str] = "dilated"
    dilation: int = 2

    def check(self, block: Block, where: str) -> None:
        _check.whole_numbers(where, dilation=self.dilation)
        if any((side - 1) % self.dilation for side in block.taps):
            raise ShapeError(
                f"{where}: expected a kernel whose sides are one more than a multiple of "
                f"dilation {self.dilation}, got {block.taps}. The remaining taps must form a "
                f"grid from corner to corner. Use another kernel size or dilation."
            )

    def initial(self, block: Block) -> dict[str, Tensor]:
        return {"gain": torch.ones(len(self._kept_taps(block)))}

    def starts_at_identity(self, block: Block) -> bool:
        return len(self._kept_taps(block)) == block.size

    def most_parameters(self, block: Block) -> int:
        return block.size

    def similarity(self, parameters: Mapping[str, Tensor], block: Block) -> Tensor:
        gain = parameters["gain"]
        empty = gain.new_zeros(*gain.shape[:-1], block.size)
        return empty.index_copy(-1, self._kept_taps(block).to(gain.device), gain)

    def _kept_taps(self, block: Block) -> Tensor:
        grid = torch.zeros(block.channels, *block.taps, dtype=torch.bool, device="cpu")
        grid[(slice(None), *(slice(None, None, self.dilation) for _ in block.taps))] = True
        return grid.flatten().nonzero().squeeze(1)
