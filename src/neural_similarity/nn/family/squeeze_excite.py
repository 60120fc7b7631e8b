"""Squeeze-and-excitation (Hu et al., 2018) on the input of a convolution."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from ... import _check
from ..layer_hooks import accept_missing_similarity

__all__ = ["SqueezeExciteConv2d"]


class SqueezeExciteConv2d(nn.Conv2d):
    r"""Squeeze-and-excitation, then a convolution: the image decides which channels count.

    From `Hu et al., 2018 <https://arxiv.org/abs/1709.01507>`_.

    .. math:: y_{n,o,l} = b_o + \sum_c \sum_i W_{o,c,i} \, g_{n,c} \, X_{n,c,i,l}, \qquad
        g_n = \sigma(A_2 \, \mathrm{relu}(A_1 \bar x_n))

    with sample n, kernel o, output position l, channel c, tap i, the mean :math:`\bar x_n` of the
    image over its positions, and σ the sigmoid. :math:`A_1` and :math:`A_2` have a bias.

    **M is** :math:`\mathrm{diag}_c\, g_{n,c} \otimes I_K`, one per image, and W is free. The layer
    scales the input instead, which is equivalent and cheaper.

    Args:
        reduction: the gate has ``C / reduction`` hidden units, at least one.

    The other arguments are :class:`torch.nn.Conv2d`'s. ``weight`` and ``bias`` have their stock
    keys, so a checkpoint of a plain convolution loads.

    Cost in multiply-adds per image: those of the convolution, ``C`` for each pixel, and ``2·C²/r``
    with reduction r.

    Example:
        >>> import torch
        >>> SqueezeExciteConv2d(32, 8, 3, padding=1)(torch.randn(2, 32, 9, 8)).shape
        torch.Size([2, 8, 9, 8])
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, int],
        *args: Any,
        reduction: int = 16,
        **kwargs: Any,
    ) -> None:
        super().__init__(in_channels, out_channels, kernel_size, *args, **kwargs)
        _check.whole_numbers(type(self).__name__, reduction=reduction)
        factory: Any = {"device": self.weight.device, "dtype": self.weight.dtype}
        self.squeeze = nn.Conv2d(in_channels, max(1, in_channels // reduction), 1, **factory)
        self.excite = nn.Conv2d(self.squeeze.out_channels, in_channels, 1, **factory)
        accept_missing_similarity(self)

    def similarity_children(self) -> dict[str, nn.Module]:
        """What a checkpoint of the stock layer lacks, by name."""
        return {"squeeze": self.squeeze, "excite": self.excite}

    def gate(self, input: Tensor) -> Tensor:
        """g: ``(N, C, 1, 1)``."""
        hidden = F.relu(self.squeeze(input.mean((2, 3), keepdim=True)))
        scores: Tensor = self.excite(hidden)
        return scores.sigmoid()

    def similarity(self, input: Tensor) -> Tensor:
        """M as the operation expects it with ``similarity_groups=C``: ``(N, C·K, 1, 1)``."""
        _check.image_batch(self, input, self.in_channels)
        return self.gate(input).repeat_interleave(self.kernel_size[0] * self.kernel_size[1], 1)

    def forward(self, input: Tensor) -> Tensor:
        if input.dim() == 3:
            return self.forward(input[None])[0]
        _check.layer_input(type(self).__name__, input, self.in_channels)
        output: Tensor = self._conv_forward(input * self.gate(input), self.weight, self.bias)
        return output
