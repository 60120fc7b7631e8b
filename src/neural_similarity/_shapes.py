"""The axis legend, and the arithmetic of convolution shapes.

======  =====================================================================
letter  meaning
======  =====================================================================
N       batch
C, O    input and output channels of a layer
G       groups
H, W    height and width of the input (the paper's H, V are our kh, kw)
P, Q    height and width of the output
kh, kw  height and width of the kernel
K       taps of a kernel, ``kh * kw``; tap k is row ``k // kw``, column ``k % kw``
======  =====================================================================
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import SupportsIndex

__all__ = ["output_size", "pair", "same_padding", "strided_same_padding"]


def pair(value: int | Sequence[int]) -> tuple[int, int]:
    """``3`` means ``(3, 3)``, as everywhere in PyTorch; symbolic sizes stay symbolic."""
    if isinstance(value, SupportsIndex) and not isinstance(value, Iterable):
        return (value, value)  # such as np.int64
    values = tuple(value) if isinstance(value, Iterable) and not isinstance(value, str) else ()
    if len(values) != 2 or not all(isinstance(one, SupportsIndex) for one in values):
        raise ValueError(
            f"convolution: expected a whole number or two of them for kernel size, stride, padding "
            f"or dilation, got {value!r}."
        )
    return (values[0], values[1])


def output_size(size: int, kernel: int, stride: int, padding: int, dilation: int) -> int:
    """The number of output positions along one axis; below 1 if the kernel does not fit."""
    return (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1


def same_padding(kernel: int, dilation: int) -> tuple[int, int]:
    """Zeros before and after one axis for ``padding="same"``; an extra one comes after."""
    total = dilation * (kernel - 1)
    return (total // 2, total - total // 2)


def strided_same_padding(size: int, kernel: int, stride: int, dilation: int) -> tuple[int, int]:
    """Zeros before and after one axis, of ``size``, for TensorFlow's ``padding="same"``.

    They give ``ceil(size / stride)`` output positions. If their number is odd, the extra one comes
    after.
    """
    positions, reach = (size + stride - 1) // stride, dilation * (kernel - 1) + 1
    total = (positions - 1) * stride + reach - size
    if reach < stride:  # otherwise it is not negative; a compiler of symbolic sizes need not know
        total = max(total, 0)
    return (total // 2, total - total // 2)
