"""Stand-alone self-attention (Ramachandran et al., 2019): attention within a window."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ... import _check
from ...errors import ShapeError
from ...ops import pair_similarity
from .windows import Windows, centres, weighted_sum

__all__ = ["LocalAttention2d"]


class LocalAttention2d(nn.Module):
    r"""Stand-alone self-attention: each pixel attends to the window around it.

    From `Ramachandran et al., 2019 <https://arxiv.org/abs/1906.05909>`_.

    .. math:: y_{n,l} = \sum_i \mathrm{softmax}_i(q_{n,l}^\top k_{n,l+i} + q_{n,l}^\top r_i) \,
        v_{n,l+i}, \qquad q, k, v = W_Q x, W_K x, W_V x

    for each head, with sample n, output position l, tap i, l + i the pixel under it, and
    :math:`r_i` the embedding of the tap's position relative to the centre: half of its channels
    belong to the row of the tap, half to its column. As in the paper, the scores are not scaled.

    **M is** :math:`\mathrm{diag}_i` of that softmax for each head, and W is :math:`W_V`, the same
    for every tap.

    A tap outside the image takes part in the softmax: its key and its value are zero, and only its
    relative position counts, as in the usual implementation.

    Args:
        in_channels, out_channels: C and O.
        kernel_size: odd.
        padding: zeros around the image; None means half the kernel, 3 for a kernel of 7.
        stride, dilation: of the windows.
        heads: they divide O into parts of an even width; 8 unless given.
        bias: whether the three projections have one. Keys and values outside the image are zero
            even then.
        groups: what the usual implementation calls the heads. Its defaults are 1 head and no
            padding.

    Cost in multiply-adds: ``C·O`` per pixel for each of key and value, and per output position
    ``C·O`` for the query, ``2·K·O`` for scores and sum, ``(kh + kw)·O/2`` for the embeddings.

    Example:
        >>> LocalAttention2d(16, 32, 7, stride=2, heads=4)(torch.randn(2, 16, 13, 12)).shape
        torch.Size([2, 32, 7, 6])
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, int] = 7,
        stride: int | tuple[int, int] = 1,
        padding: int | tuple[int, int] | None = None,
        heads: int | None = None,
        bias: bool = False,
        *,
        dilation: int | tuple[int, int] = 1,
        groups: int | None = None,
        **factory: Any,
    ) -> None:
        super().__init__()
        where = type(self).__name__
        _check.whole_numbers(where, in_channels=in_channels, out_channels=out_channels)
        _check.true_or_false(where, bias=bias)
        if None not in (heads, groups) and heads != groups:
            raise ShapeError(
                f"{where}: expected heads or groups, got heads={heads} and groups={groups}. They "
                f"are two names of one number. Leave one of them out."
            )
        heads = next((number for number in (heads, groups) if number is not None), 8)
        _check.divisor(where, "heads", heads, out_channels, "out_channels")
        width = out_channels // heads
        if width % 2:
            raise ShapeError(
                f"{where}: expected an even number of channels in each head, got {width} "
                f"({out_channels} in {heads} heads). One half belongs to the rows of the window, "
                f"the other to its columns. Change out_channels or heads."
            )
        self.windows = Windows.checked(where, kernel_size, stride, padding, dilation)
        self.in_channels, self.heads = in_channels, heads
        self.query = nn.Conv2d(in_channels, out_channels, 1, bias=bias, **factory)
        self.key = nn.Conv2d(in_channels, out_channels, 1, bias=bias, **factory)
        self.value = nn.Conv2d(in_channels, out_channels, 1, bias=bias, **factory)
        rows, columns = self.windows.kernel_size
        self.rows = nn.Parameter(torch.empty(heads, width // 2, rows, **factory))
        self.columns = nn.Parameter(torch.empty(heads, width // 2, columns, **factory))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the embeddings anew; the projections have their own method."""
        nn.init.normal_(self.rows)
        nn.init.normal_(self.columns)

    def similarity(self, input: Tensor) -> Tensor:
        """The softmax: ``(N, heads·K, P, Q)``, the K entries of a head adjacent."""
        _check.image_batch(self, input, self.in_channels)
        query = self.query(centres(input, self.windows))
        scores = pair_similarity(query, self.key(input), *self.windows, groups=self.heads)
        # One sum at a time, in place: a map for every tap is the largest tensor here.
        by_tap = scores.unflatten(1, (self.heads, *self.windows.kernel_size))
        by_row, by_column = query.unflatten(1, (self.heads, -1)).chunk(2, 2)
        by_tap.add_(torch.einsum("nsdpq,sdk->nskpq", by_row, self.rows)[:, :, :, None])
        by_tap.add_(torch.einsum("nsdpq,sdk->nskpq", by_column, self.columns)[:, :, None])
        shares: Tensor = by_tap.flatten(2, 3).softmax(2)
        return shares.flatten(1, 2)

    def forward(self, input: Tensor) -> Tensor:
        if input.dim() == 3:
            return self.forward(input[None])[0]
        where = type(self).__name__
        _check.layer_input(where, input, self.in_channels)
        _check.window_positions(where, input, *self.windows)
        return weighted_sum(self.value(input), self.similarity(input), self.windows, self.heads)

    def extra_repr(self) -> str:
        return f"{self.windows.describe()}, heads={self.heads}"
