"""Padding of any kind: as a count of zeros where possible, otherwise applied to the input."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from .._shapes import same_padding, strided_same_padding
from .own_forward import OwnPadding

__all__ = ["explicit_padding"]


def explicit_padding(conv: nn.Conv1d | nn.Conv2d, input: Tensor) -> tuple[Tensor, tuple[int, ...]]:
    """The input, padded if equal zeros on both sides are not enough, and the zeros still to add."""
    nothing = (0,) * len(conv.kernel_size)
    own: OwnPadding | None = getattr(conv, "own_padding", None)
    if own is not None:
        return _own_padding(conv, own, input)
    if conv.padding_mode != "zeros":
        mode = conv.padding_mode
        return F.pad(input, conv._reversed_padding_repeated_twice, mode=mode), nothing
    if not isinstance(conv.padding, str):
        return input, conv.padding
    if conv.padding == "valid":
        return input, nothing
    return _constant(
        input, [same_padding(k, d) for k, d in zip(conv.kernel_size, conv.dilation, strict=True)]
    )


def _own_padding(
    conv: nn.Conv1d | nn.Conv2d, own: OwnPadding, input: Tensor
) -> tuple[Tensor, tuple[int, ...]]:
    """The padding that a subclass adds in its ``forward``."""
    constant = [side for side in own if side is not None]
    if len(constant) == len(own):
        return _constant(input, constant)
    settings = zip(input.shape[2:], conv.kernel_size, conv.stride, conv.dilation, strict=True)
    sides = [
        strided_same_padding(*setting) if side is None else side
        for side, setting in zip(own, settings, strict=True)
    ]
    return _pad(input, sides), (0,) * len(own)


def _constant(input: Tensor, sides: list[tuple[int, int]]) -> tuple[Tensor, tuple[int, ...]]:
    if all(before == after for before, after in sides):
        return input, tuple(before for before, _ in sides)
    return _pad(input, sides), (0,) * len(sides)


def _pad(input: Tensor, sides: list[tuple[int, int]]) -> Tensor:
    return F.pad(input, [zeros for side in reversed(sides) for zeros in side])
