"""The spatial and channel attentions of omni-dimensional dynamic convolution (Li et al., 2022)."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from ... import _check
from ...ops import similarity_conv2d
from ...ops.similarity_conv import runs_compiled
from .._padding import explicit_padding
from ..layer_hooks import accept_missing_similarity

__all__ = ["SpatialAttentionConv2d"]


class SpatialAttentionConv2d(nn.Conv2d):
    r"""ODConv's attention over taps and channels: the image decides which of them count.

    From `Li, Zhou and Yao, 2022 <https://arxiv.org/abs/2209.07947>`_. Of the paper's four
    attentions these are the two between kernel and patch; those over filters and over several
    kernels are not a similarity.

    .. math:: y_{n,o,l} = b_o + \sum_c \sum_i W_{o,c,i} \, a_{n,c} \, s_{n,i} \, X_{n,c,i,l},
        \qquad a_n = \sigma(A_c h_n / T), \quad s_n = \sigma(A_s h_n / T)

    with sample n, kernel o, output position l, channel c, tap i, temperature T, σ the sigmoid, and
    h the image's mean over its positions after a linear layer, batch normalisation and ReLU.

    **M is** :math:`\mathrm{diag}_c\, a_{n,c} \otimes \mathrm{diag}_i\, s_{n,i}`, one per image, and
    W is free. The layer scales the input by a, which is equivalent and cheaper.

    As in the authors' code, a kernel of one tap has no attention over taps, and in training the
    batch normalisation needs more than one image.

    Args:
        reduction: the hidden channels as a fraction of the input's.
        kernel_num: 1. The authors' default mixes 4 kernels, which is not a similarity.
        bias: False by default, as in the authors' code.
        min_channels: the hidden channels are at least this many.
        temperature: T. The authors lower it during the first epochs: set ``layer.temperature``.

    The arguments have the order of the authors' code; the other ones are those of
    :class:`torch.nn.Conv2d`. ``weight`` and ``bias`` have their stock
    keys, so a checkpoint of a plain convolution loads.

    Cost in multiply-adds per image: those of the convolution and its patches, ``C`` for each pixel,
    and ``h·(2·C + K)`` with h hidden channels.

    Example:
        >>> import torch
        >>> conv = SpatialAttentionConv2d(32, 8, 3, padding=1, temperature=4.0)
        >>> conv(torch.randn(2, 32, 9, 8)).shape
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
        groups: int = 1,
        reduction: float = 0.0625,
        kernel_num: int = 1,
        *,
        bias: bool = False,
        min_channels: int = 16,
        temperature: float = 1.0,
        **kwargs: Any,
    ) -> None:
        where = type(self).__name__
        _check.positive_numbers(where, reduction=reduction, temperature=temperature)
        _check.whole_numbers(where, min_channels=min_channels)
        _check.only_choices(
            where, "A mixture of kernels is not a similarity.", kernel_num=(kernel_num, 1)
        )
        super().__init__(
            in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias,
            **kwargs,
        )  # fmt: skip
        self.temperature = temperature
        self.taps = self.kernel_size[0] * self.kernel_size[1]
        hidden = max(int(in_channels * reduction), min_channels)
        factory: Any = {"device": self.weight.device, "dtype": self.weight.dtype}
        self.reduce = nn.Conv2d(in_channels, hidden, 1, bias=False, **factory)
        self.norm = nn.BatchNorm2d(hidden, **factory)
        self.channel = nn.Conv2d(hidden, in_channels, 1, **factory)
        self.spatial = nn.Conv2d(hidden, self.taps, 1, **factory) if self.taps > 1 else None
        for layer in filter(None, (self.reduce, self.channel, self.spatial)):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
        accept_missing_similarity(self)

    def similarity_children(self) -> dict[str, nn.Module]:
        """What a checkpoint of the stock layer lacks, by name."""
        children = {"reduce": self.reduce, "norm": self.norm, "channel": self.channel}
        return children if self.spatial is None else {**children, "spatial": self.spatial}

    def attentions(self, input: Tensor) -> tuple[Tensor, Tensor | None]:
        """a, ``(N, C, 1, 1)``, and s, ``(N, K, 1, 1)``, which is None for one tap."""
        hidden = F.relu(self.norm(self.reduce(input.mean((2, 3), keepdim=True))))
        channel = (self.channel(hidden) / self.temperature).sigmoid()
        if self.spatial is None:
            return channel, None
        return channel, (self.spatial(hidden) / self.temperature).sigmoid()

    def similarity(self, input: Tensor) -> Tensor:
        """M as the operation expects it with ``similarity_groups=C``: ``(N, C·K, 1, 1)``."""
        _check.image_batch(self, input, self.in_channels)
        channel, spatial = self.attentions(input)
        if spatial is None:
            return channel
        return _product(channel, spatial)

    def forward(self, input: Tensor) -> Tensor:
        if input.dim() == 3:
            return self.forward(input[None])[0]
        _check.layer_input(type(self).__name__, input, self.in_channels)
        channel, spatial = self.attentions(input)
        if spatial is None:
            output: Tensor = self._conv_forward(input * channel, self.weight, self.bias)
            return output
        padded, zeros = explicit_padding(self, input)
        settings = (self.bias, self.stride, zeros, self.dilation, self.groups)
        if runs_compiled(padded, self.weight, spatial):  # which makes kernels for every image
            both = _product(channel, spatial)
            return similarity_conv2d(padded, self.weight, both, *settings, self.in_channels)
        return similarity_conv2d(padded * channel, self.weight, spatial, *settings)

    def extra_repr(self) -> str:
        return f"{nn.Conv2d.extra_repr(self)}, temperature={self.temperature}"


def _product(channel: Tensor, spatial: Tensor) -> Tensor:
    """``a[c] · s[i]``: ``(N, C·K, 1, 1)``."""
    return (channel[:, :, None] * spatial[:, None]).flatten(1, 2)
