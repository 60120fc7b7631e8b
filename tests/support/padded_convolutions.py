"""Convolutions that pad in their own ``forward``, as in pretrained networks."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn


def around(size: int, kernel: int, stride: int, dilation: int) -> list[int]:
    """Zeros before and after an axis, counted one by one: enough for ``ceil(size / stride)``."""
    positions, total = -(-size // stride), 0
    while (size + total - dilation * (kernel - 1) - 1) // stride + 1 < positions:
        total += 1
    return [total // 2, total - total // 2]


class SameConv2d(nn.Conv2d):
    """Always pads, anew for every input, and convolves with the function."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.padding = (0, 0)

    def sides(self, size: Any) -> list[int]:
        settings = zip(size, self.kernel_size, self.stride, self.dilation, strict=True)
        high, wide = (around(*setting) for setting in settings)
        return [*wide, *high]

    def forward(self, x: Tensor) -> Tensor:
        x = F.pad(x, self.sides(x.size()[-2:]), value=0)
        return F.conv2d(x, self.weight, self.bias, self.stride, (0, 0), self.dilation, self.groups)


class SometimesPaddedConv2d(SameConv2d):
    """Pads only where there is something to pad, and has lists for settings."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.stride = list(self.stride)

    def forward(self, x: Tensor) -> Tensor:
        sides = self.sides(x.shape[-2:])
        if max(sides) > 0:
            x = F.pad(x, sides)
        return F.conv2d(
            x, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups
        )


class OneSizeConv2d(SameConv2d):
    """Pads with a module, made once for images of one size."""

    def __init__(self, *args: Any, image_size: tuple[int, int] = (17, 24), **options: Any) -> None:
        super().__init__(*args, **options)
        sides = self.sides(image_size)
        self.static_padding = nn.ZeroPad2d(sides) if any(sides) else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return super(SameConv2d, self).forward(self.static_padding(x))


class AutoConv2d(nn.Conv2d):
    """Does not override forward: it only computes its settings."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.padding = tuple(kernel // 2 for kernel in self.kernel_size)


class InnerConv2d(nn.Conv2d):
    """Overrides the inner function, and pads twice: by hand and by the convolution."""

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        input = F.pad(input, (0, 1))
        return F.conv2d(input, weight, bias, self.stride, (1, 2), self.dilation, self.groups)


class RememberingConv2d(SameConv2d):
    """Keeps the padding of the first image for all others."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.pad: nn.Module | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.pad is None:
            self.pad = nn.ZeroPad2d(self.sides(x.size()[-2:]))
        return super(SameConv2d, self).forward(self.pad(x))


class CausalConv1d(nn.Conv1d):
    """Sees only what came before."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(F.pad(x, (self.dilation[0] * (self.kernel_size[0] - 1), 0)))


PADDED = (SameConv2d, SometimesPaddedConv2d, OneSizeConv2d, AutoConv2d, InnerConv2d)
