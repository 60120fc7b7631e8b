"""Padding of any kind: as a count of zeros where possible, otherwise applied to the input."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from .._shapes import same_padding

__all__ = ["explicit_padding"]


def explicit_padding(conv: nn.Conv1d | nn.Conv2d, input: Tensor) -> tuple[Tensor, tuple[int, ...]]:
    """The input, padded if equal zeros on both sides are not enough, and the zeros still to add."""
    nothing = (0,) * len(conv.kernel_size)
    if conv.padding_mode != "zeros":
        mode = conv.padding_mode
        return F.pad(input, conv._reversed_padding_repeated_twice, mode=mode), nothing
    if not isinstance(conv.padding, str):
        return input, conv.padding
    if conv.padding == "valid":
        return input, nothing
    sides = [same_padding(k, d) for k, d in zip(conv.kernel_size, conv.dilation, strict=True)]
    if all(before == after for before, after in sides):
        return input, tuple(before for before, _ in sides)
    return F.pad(input, [zeros for side in reversed(sides) for zeros in side]), nothing
