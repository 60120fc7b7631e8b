"""The windows of a convolution, and the pixels in their middle."""

from __future__ import annotations

from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor

from ..._shapes import same_padding

__all__ = ["Window", "centre_pixels"]


class Window(NamedTuple):
    """Stride, padding and dilation of a layer."""

    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)


def centre_pixels(input: Tensor, kernel_size: tuple[int, int], window: Window) -> Tensor:
    """The pixel under the centre of every window: ``(N, C, P, Q)``, zero outside the image.

    Without a middle tap it is the pixel that ``padding="same"`` gives to a position: the one before
    the middle.

    >>> import torch
    >>> row = torch.arange(1.0, 7).reshape(1, 1, 1, 6)
    >>> centre_pixels(row, (1, 3), Window(stride=(1, 2), padding=(0, 2))).flatten()
    tensor([0., 2., 4., 6.])
    """
    margins = []  # zeros around the image; if negative, pixels that are not centres
    for kernel, padding, dilation in zip(kernel_size, window.padding, window.dilation, strict=True):
        before, after = same_padding(kernel, dilation)
        margins.append((padding - before, padding - after))
    (top, bottom), (left, right) = margins
    if (top, bottom, left, right) != (0, 0, 0, 0):
        input = F.pad(input, (left, right, top, bottom))
    rows, columns = window.stride
    return input if (rows, columns) == (1, 1) else input[:, :, ::rows, ::columns]
