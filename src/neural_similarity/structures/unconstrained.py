"""Unconstrained neural similarity (the paper's UNS, Section 3.1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from .base import Block, Structure, register

__all__ = ["Unconstrained"]


@register
@dataclass(frozen=True)
class Unconstrained(Structure):
    """Any matrix: n² parameters."""

    name: ClassVar[str] = "unconstrained"
    has_free_entries: ClassVar[bool] = True

    def initial(self, block: Block) -> dict[str, Tensor]:
        return {"matrix": torch.eye(block.size)}

    def similarity(self, parameters: Mapping[str, Tensor], block: Block) -> Tensor:
        return parameters["matrix"]
