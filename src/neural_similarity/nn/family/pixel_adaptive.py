"""Pixel-adaptive convolution (Su et al., 2019): a guide shows which pixels belong together."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from ... import _check
from ..._shapes import pair
from ...ops import similarity_conv2d
from .._padding import explicit_padding
from .windows import Windows, gaussian_similarity, inside

__all__ = ["PixelAdaptiveConv2d"]


class PixelAdaptiveConv2d(nn.Conv2d):
    r"""Pixel-adaptive convolution: taps count less where a guide differs from the centre.

    From `Su et al., 2019 <https://arxiv.org/abs/1904.05373>`_.

    .. math:: y_{n,o,l} = b_o + \sum_c \sum_i W_{o,c,i} \, K_{n,i,l} \, X_{n,c,i,l}, \qquad
        K_{n,i,l} = \exp(-\tfrac12 \| f_{n,l} - f_{n,l+i} \|^2)

    with sample n, kernel o, output position l, channel c, tap i, l + i the pixel under it, and the
    guide f, often another image or learned features of it.

    **M is** :math:`\mathrm{diag}_i K_{n,i,l}`, and W is free. On a constant guide this is a plain
    convolution, except at the border with ``normalize_kernel``.

    Args:
        in_channels, out_channels, kernel_size, stride, padding, dilation, bias, groups,
            padding_mode: as in :class:`torch.nn.Conv2d`, but in the order of the authors' code. The
            kernel is odd, and the guide is padded as the input is.
        kernel_type, smooth_kernel_type, shared_filters, filler, native_impl: only the defaults of
            the authors' code are supported.
        normalize_kernel: divide K by its sum over the taps inside the image.

    ``weight`` and ``bias`` have their stock keys, so a checkpoint of a plain convolution loads.

    Cost in multiply-adds per output position: ``K·C/G·O + K·C``, plus ``K·D`` for a guide of D
    channels.

    Example:
        >>> import torch
        >>> conv = PixelAdaptiveConv2d(3, 8, 5, padding=2)
        >>> image, guide = torch.randn(2, 3, 9, 8), torch.randn(2, 4, 9, 8)
        >>> conv(image, guide).shape
        torch.Size([2, 8, 9, 8])
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, int],
        stride: int | tuple[int, int] = 1,
        padding: int | tuple[int, int] | str = 0,
        dilation: int | tuple[int, int] = 1,
        bias: bool = True,
        kernel_type: str = "gaussian",
        smooth_kernel_type: str = "none",
        normalize_kernel: bool = False,
        shared_filters: bool = False,
        filler: str = "uniform",
        native_impl: bool = False,
        *,
        groups: int = 1,
        **kwargs: Any,
    ) -> None:
        where = type(self).__name__
        _check.odd_kernel(where, pair(kernel_size))
        _check.true_or_false(where, bias=bias, normalize_kernel=normalize_kernel)
        _check.only_choices(
            where,
            "Other forms of the authors' code are not supported.",
            kernel_type=(kernel_type, "gaussian"),
            smooth_kernel_type=(smooth_kernel_type, "none"),
            shared_filters=(shared_filters, False),
            filler=(filler, "uniform"),
            native_impl=(native_impl, False),
        )
        super().__init__(
            in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias,
            **kwargs,
        )  # fmt: skip
        self.normalize_kernel = normalize_kernel

    def similarity(self, guide: Tensor) -> Tensor:
        """K of a guide ``(N, D, H, W)``: ``(N, K, P, Q)``."""
        _check.image_batch(self, guide)
        padded, zeros = explicit_padding(self, guide)
        windows = self._windows(zeros)
        similarity = gaussian_similarity(padded, windows)
        if not self.normalize_kernel:
            return similarity
        similarity = similarity * inside(padded, windows)
        total = similarity.sum(1, keepdim=True)
        return similarity / (total + (total == 0))  # a window may lie entirely in the padding

    def forward(self, input: Tensor, guide: Tensor) -> Tensor:  # type: ignore[override]
        where = type(self).__name__
        if input.dim() == 3:
            _check.guide(where, input, guide)
            return self.forward(input[None], guide[None])[0]
        _check.layer_input(where, input, self.in_channels)
        _check.guide(where, input, guide)
        padded, zeros = explicit_padding(self, input)
        windows = self._windows(zeros)
        return similarity_conv2d(
            padded, self.weight, self.similarity(guide), self.bias, *windows[1:], self.groups
        )

    def _windows(self, zeros: tuple[int, ...]) -> Windows:
        return Windows(pair(self.kernel_size), pair(self.stride), pair(zeros), pair(self.dilation))

    def extra_repr(self) -> str:
        return f"{nn.Conv2d.extra_repr(self)}, normalize_kernel={self.normalize_kernel}"
