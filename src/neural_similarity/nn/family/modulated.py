"""The mask of deformable convolution v2 (Zhu et al., 2019), without its offsets."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from ... import _check
from ..._shapes import pair
from ...ops import similarity_conv2d
from .._padding import explicit_padding
from ..layer_hooks import accept_missing_similarity

__all__ = ["ModulatedConv2d"]


class ModulatedConv2d(nn.Conv2d):
    r"""Modulated convolution: a mask, predicted at each position, weakens individual taps.

    This is deformable convolution v2 (`Zhu et al., 2019 <https://arxiv.org/abs/1811.11168>`_) with
    offsets of zero.

    .. math:: y_{n,o,l} = b_o
        + \sum_c \sum_i W_{o,c,i} \, \sigma(m_{n,g(c),i,l}) \, X_{n,c,i,l}

    with sample n, kernel o, output position l, channel c of the deformable group g(c), tap i, σ the
    sigmoid, and m from a convolution of the same windows.

    **M is** :math:`\mathrm{diag}_i \sigma(m_{n,g,i,l})` for each group g of channels, and W is
    free.

    The convolution that predicts m starts at zero, as in the usual implementations, so every mask
    starts at 0.5: at first the output is half that of the plain convolution.

    Args:
        deform_groups: how many groups of neighbouring channels have their own mask; it divides
            ``in_channels``.

    The other arguments are :class:`torch.nn.Conv2d`'s, in the order of the usual implementation:
    ``deform_groups`` stands before ``bias``. ``weight`` and ``bias`` have their stock
    keys, so a checkpoint of a plain convolution loads.

    Cost in multiply-adds per output position: ``K·C/G·O + K·C``, and ``K²·C`` for the mask of each
    deformable group.

    Example:
        >>> import torch
        >>> conv, image = ModulatedConv2d(4, 8, 3, padding=1, bias=False), torch.randn(2, 4, 9, 8)
        >>> plain = nn.Conv2d(4, 8, 3, padding=1, bias=False)
        >>> _ = conv.load_state_dict(plain.state_dict())
        >>> torch.allclose(conv(image), plain(image) / 2, atol=1e-6)
        True
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
        deform_groups: int = 1,
        bias: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias,
            **kwargs,
        )  # fmt: skip
        where = type(self).__name__
        _check.divisor(where, "deform_groups", deform_groups, in_channels, "in_channels")
        self.deform_groups = deform_groups
        taps = self.kernel_size[0] * self.kernel_size[1]
        self.mask = nn.Conv2d(
            in_channels,
            deform_groups * taps,
            pair(self.kernel_size),
            pair(self.stride),
            self.padding if isinstance(self.padding, str) else pair(self.padding),
            pair(self.dilation),
            padding_mode=self.padding_mode,
            device=self.weight.device,
            dtype=self.weight.dtype,
        )
        nn.init.zeros_(self.mask.weight)
        assert self.mask.bias is not None
        nn.init.zeros_(self.mask.bias)
        accept_missing_similarity(self)

    def similarity_children(self) -> dict[str, nn.Module]:
        """What a checkpoint of the stock layer lacks, by name."""
        return {"mask": self.mask}

    def similarity(self, input: Tensor) -> Tensor:
        """The mask: ``(N, deform_groups·K, P, Q)``, the K entries of a group adjacent."""
        _check.image_batch(self, input, self.in_channels)
        mask: Tensor = self.mask(input)
        return mask.sigmoid()

    def forward(self, input: Tensor) -> Tensor:
        if input.dim() == 3:
            return self.forward(input[None])[0]
        _check.layer_input(type(self).__name__, input, self.in_channels)
        padded, zeros = explicit_padding(self, input)
        return similarity_conv2d(
            padded,
            self.weight,
            self.similarity(input),
            self.bias,
            self.stride,
            zeros,
            self.dilation,
            self.groups,
            self.deform_groups,
        )

    def extra_repr(self) -> str:
        return f"{nn.Conv2d.extra_repr(self)}, deform_groups={self.deform_groups}"
