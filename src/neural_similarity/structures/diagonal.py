"""Diagonal neural similarity (the paper's DNS, Section 3.1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from .base import Block, Structure, register

__all__ = ["Diagonal"]


@register
@dataclass(frozen=True)
class Diagonal(Structure):
    r"""A weighted inner product: :math:`M = \mathrm{diag}(m_1, …, m_n)`, n parameters."""

    name: ClassVar[str] = "diagonal"
    has_free_entries: ClassVar[bool] = True

    def initial(self, block: Block) -> dict[str, Tensor]:
        return {"diagonal": torch.ones(block.size)}

    def most_parameters(self, block: Block) -> int:
        return block.size

    def similarity(self, parameters: Mapping[str, Tensor], block: Block) -> Tensor:
        return parameters["diagonal"]
