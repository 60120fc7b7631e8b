"""Involution (Li et al., 2021): a kernel for each position, shared by the channels of a group."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from ... import _check
from .windows import Windows, weighted_sum

__all__ = ["Involution2d"]


class Involution2d(nn.Module):
    r"""Involution: every position has its own kernel, predicted from its pixel.

    From `Li et al., 2021 <https://arxiv.org/abs/2103.06255>`_.

    .. math:: y_{n,c,l} = \sum_i H_{n,s(c),i,l} \, X_{n,c,i,l}, \qquad
        H_{n,l} = W_1 \, \sigma(W_0 \, x_{n,l})

    with sample n, channel c of group s(c), output position l, tap i, the pixel x at l, and σ batch
    normalisation and ReLU. The window is centred, with zeros around the image.

    **M is** :math:`\mathrm{diag}_i H_{n,s,i,l}` for each group s of channels, and W is depthwise,
    all ones.

    With a stride, the generator reads the average of ``stride × stride`` pixels, as in the authors'
    code. Where the stride does not divide the size, the last average has fewer pixels.

    Args:
        channels: C, of input and output.
        kernel_size: odd.
        stride: of the output positions.
        group_channels: how many neighbouring channels share a kernel; it divides C.
        reduction: the generator has ``C / reduction`` hidden channels.

    Cost in multiply-adds per output position: ``K·C``, and ``C²/r + K·C²/(r·g)`` for the generator
    with reduction r and g channels in a group.

    Example:
        >>> import torch
        >>> Involution2d(32, 7, stride=2)(torch.randn(2, 32, 15, 14)).shape
        torch.Size([2, 32, 8, 7])
    """

    def __init__(
        self,
        channels: int,
        kernel_size: int | tuple[int, int] = 7,
        stride: int | tuple[int, int] = 1,
        group_channels: int = 16,
        reduction: int = 4,
        **factory: Any,
    ) -> None:
        super().__init__()
        where = type(self).__name__
        _check.whole_numbers(where, channels=channels, reduction=reduction)
        _check.divisor(where, "group_channels", group_channels, channels, "channels")
        self.windows = Windows.checked(where, kernel_size, stride)
        self.channels, self.groups = channels, channels // group_channels
        hidden = max(1, channels // reduction)
        self.reduce = nn.Conv2d(channels, hidden, 1, bias=False, **factory)
        self.norm = nn.BatchNorm2d(hidden, **factory)
        self.span = nn.Conv2d(hidden, self.groups * self.windows.taps, 1, **factory)

    def similarity(self, input: Tensor) -> Tensor:
        """H: ``(N, S·K, P, Q)``, the K entries of a group of channels adjacent."""
        _check.image_batch(self, input, self.channels)
        stride = self.windows.stride
        if stride != (1, 1):
            input = F.avg_pool2d(input, stride, stride, ceil_mode=True)
        hidden = F.relu(self.norm(self.reduce(input)))
        kernels: Tensor = self.span(hidden)
        return kernels

    def forward(self, input: Tensor) -> Tensor:
        if input.dim() == 3:
            return self.forward(input[None])[0]
        _check.layer_input(type(self).__name__, input, self.channels)
        return weighted_sum(input, self.similarity(input), self.windows, self.groups)

    def extra_repr(self) -> str:
        return f"{self.channels}, {self.windows.describe()}, groups={self.groups}"
