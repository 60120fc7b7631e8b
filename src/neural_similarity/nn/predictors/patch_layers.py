"""The layers of a patch predictor.

They are called like any module, so that hooks, pruning, weight normalisation and wrappers work.
Where :func:`only_weights_matter` is true, a faster operation may read their weights instead.
"""

from __future__ import annotations

from typing import Literal, cast

import torch.nn.functional as F
from torch import Tensor, nn

from ...ops.sphere import sphere_conv2d, sphere_linear
from ..plain_calls import called_plainly
from .windows import Window

__all__ = ["PatchConv2d", "PatchLinear", "only_weights_matter", "size_preserving"]

Normalize = Literal["input", "both"]


class PatchConv2d(nn.Conv2d):
    """A convolution without bias; with ``normalize``, a sphere convolution.

    A call may name stride, padding and dilation: those of the layer for which M is predicted.
    """

    def __init__(
        self,
        channels: int,
        outputs: int,
        kernel_size: tuple[int, int],
        padding: tuple[int, int] = (0, 0),
        normalize: Normalize | None = None,
    ) -> None:
        super().__init__(channels, outputs, kernel_size, padding=padding, bias=False)
        self.normalize = normalize

    def forward(self, input: Tensor, window: Window | None = None) -> Tensor:
        window = window or cast(Window, (self.stride, self.padding, self.dilation))
        if self.normalize is None:
            return F.conv2d(input, self.weight, None, *window)
        return sphere_conv2d(input, self.weight, None, *window, normalize=self.normalize)


class PatchLinear(nn.Linear):
    """The same for vectors; they have no window."""

    def __init__(self, channels: int, outputs: int, normalize: Normalize | None = None) -> None:
        super().__init__(channels, outputs, bias=False)
        self.normalize = normalize

    def forward(self, input: Tensor, window: Window | None = None) -> Tensor:
        if self.normalize is None:
            return F.linear(input, self.weight)
        return sphere_linear(input, self.weight, normalize=self.normalize)


def only_weights_matter(*layers: nn.Module) -> bool:
    """Whether these are the convolutions above, unchanged: a call does nothing but compute."""
    return all(type(layer) is PatchConv2d for layer in layers) and called_plainly(*layers)


def size_preserving(
    channels: int,
    outputs: int,
    kernel_size: tuple[int, int],
    normalize: Normalize | None = None,
) -> PatchConv2d:
    """A 3×3 convolution that keeps the size; for a kernel with one row it has one row too."""
    high, wide = (min(side, 2) - 1 for side in kernel_size)
    return PatchConv2d(channels, outputs, (2 * high + 1, 2 * wide + 1), (high, wide), normalize)
