"""Inputs of the operation, and what is measured on them. Needs PyTorch alone."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = [
    "DIRECTIONS",
    "FACTORED",
    "GROUPS",
    "KINDS",
    "SHAPES",
    "TAPS",
    "Function",
    "make",
    "plain",
    "step",
]

# (batch, channels, kernels, side), 3×3 with padding 1
SHAPES = ((128, 32, 32, 32), (128, 64, 64, 16), (128, 128, 128, 8), (32, 64, 64, 56))
TAPS = 9
GROUPS = 4
KINDS = ("diagonal", "unconstrained")
FACTORED = ("over channels", "over channels and taps")
DIRECTIONS = ("forward", "forward and backward")
Function = Callable[[Tensor, Tensor, Tensor], Tensor]


def make(shape: tuple[int, int, int, int], kind: str) -> tuple[Tensor, Tensor, Tensor]:
    """Input, weight and similarity; ``kind`` is the name of a row in the tables."""
    torch.manual_seed(0)
    batch, channels, kernels, side = shape
    last = torch.channels_last
    input = torch.randn(batch, channels, side, side).to(memory_format=last)
    weight = torch.randn(kernels, channels, 3, 3).to(memory_format=last)
    taps: tuple[int, ...] = (GROUPS * TAPS,) if "groups" in kind else (TAPS,)
    if "unconstrained" in kind:
        taps = (TAPS, TAPS)
    if kind in FACTORED:
        taps = (channels + (TAPS if "taps" in kind else 0),)
    positions = (1, 1) if "image" in kind else (side, side)
    return input, weight, torch.rand(batch, *taps, *positions)


def plain(input: Tensor, weight: Tensor, similarity: Tensor) -> Tensor:
    return F.conv2d(input, weight, padding=1)


def step(direction: str, function: Function, tensors: tuple[Tensor, ...]) -> Callable[[], object]:
    """What a round does: the output alone, or all gradients as well."""
    if direction == "forward":
        return torch.no_grad()(lambda: function(*tensors))
    leaves = [t.detach().requires_grad_() for t in tensors]
    used = leaves[:2] if function is plain else leaves
    with torch.no_grad():
        ones = torch.ones_like(plain(*tensors))
    return lambda: torch.autograd.grad(function(*leaves), used, ones)
