"""The similarity convolution in pure PyTorch: masked panels.

    y[n,o,l] = sum_c sum_i sum_j W[o,c,i] * M[n,i,j,l] * X[n,c,j,l]

where ``X`` are the patches of the input and ``M`` the similarity, diagonal in ``(i, j)`` or full.

Unfolding the patches of a whole batch would take ``K`` times the memory of the input, and time to
match. Instead the batch is processed in pieces, a few samples (or a few rows of a large sample) at
a time: a *panel* holds the weighted patches of one piece, one matrix product turns it into
outputs, and the next piece reuses its memory. On a CPU, pieces are small enough for the panel to
stay in cache. On an accelerator they are as large as a fixed memory budget allows, because there
the number of kernel launches matters.

Panels are laid out ``(group, sample, row, column, tap row, tap column, channel)``, so that writing
one follows the order of channels-last memory and the matrix product needs no further copy. The two
axes of a tap stay separate because in a view of the padded input they cannot be merged.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from .pieces import Geometry, Piece, format_of, gradient_memory, pieces_of

__all__ = ["backward", "forward"]


def forward(
    input: Tensor,
    weight: Tensor,
    similarity: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    similarity_groups: int,
) -> Tensor:
    """The output of the similarity convolution, in the memory format of the input."""
    g = Geometry.of(input, weight, stride, padding, dilation, groups, similarity_groups)
    size = (g.batch, g.outputs, g.rows, g.columns)
    output = torch.empty(
        size, dtype=input.dtype, device=input.device, memory_format=format_of(input)
    )
    if output.numel() == 0 or g.channels == 0:
        return output.zero_()
    dtype = _working_dtype(input)
    matrix = _matrix(g, weight, dtype)
    panel, result, gathered = _Buffer(matrix), _Buffer(matrix), _Buffer(matrix)
    for piece in pieces_of(g, input):
        patches = _patches(g, input, piece, dtype)
        if similarity.dim() == 5:
            patches = gathered.copy_of(patches)
        _weigh(g, patches, _factors(g, similarity, piece, dtype), panel.view(patches.shape))
        positions = patches[0, ..., 0, 0, 0].numel()
        products = result.view((g.groups, positions, matrix.shape[2]))
        torch.bmm(panel.view((g.groups, positions, matrix.shape[1])), matrix, out=products)
        _place(output, piece, groups).copy_(products.view(g.groups, *patches.shape[1:4], -1))
    return output


def backward(
    grad_output: Tensor,
    input: Tensor,
    weight: Tensor,
    similarity: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    similarity_groups: int,
    mask: Sequence[bool],
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of input, weight and similarity where ``mask`` is true, else empty tensors.

    The patches are recomputed piece by piece instead of being stored in the forward pass.
    """
    g = Geometry.of(input, weight, stride, padding, dilation, groups, similarity_groups)
    dtype = _working_dtype(input)
    sums = _Gradients(g, input, weight, similarity, mask, dtype)
    if grad_output.numel() > 0 and g.channels > 0 and any(mask):
        for piece in pieces_of(g, input):
            sums.add(piece, _place(grad_output, piece, g.groups), input, similarity)
    return sums.result(weight)


def _place(tensor: Tensor, piece: Piece, groups: int) -> Tensor:
    """A piece of an output, or of its gradient: ``(group, sample, row, column, output)``."""
    part = tensor[piece.samples, :, piece.rows]
    shape = (part.shape[0], groups, -1, *part.shape[2:])
    return part.view(shape).permute(1, 0, 3, 4, 2)


class _Buffer:
    """Memory that is reused from piece to piece, so that it stays in cache."""

    def __init__(self, like: Tensor) -> None:
        self._memory = like.new_empty(0)

    def view(self, shape: Sequence[int]) -> Tensor:
        size = math.prod(shape)
        if self._memory.numel() < size:
            self._memory = self._memory.new_empty(size)
        return self._memory[:size].view(shape)

    def copy_of(self, tensor: Tensor) -> Tensor:
        return self.view(tensor.shape).copy_(tensor)


def _working_dtype(input: Tensor) -> torch.dtype:
    """The dtype of panels: on a CPU only matrix products in float32 and float64 are fast."""
    if input.device.type == "cpu" and input.dtype in (torch.bfloat16, torch.float16):
        return torch.float32
    return input.dtype


def _matrix(g: Geometry, weight: Tensor, dtype: torch.dtype) -> Tensor:
    """The weight as ``(group, tap and channel, output)``."""
    split = weight.reshape(g.groups, g.outputs // g.groups, -1, g.taps)
    return split.permute(0, 3, 2, 1).reshape(g.groups, -1, g.outputs // g.groups).to(dtype)


def _patches(g: Geometry, input: Tensor, piece: Piece, dtype: torch.dtype) -> Tensor:
    """The patches of a piece, a view in the order of a panel.

    Only the piece is padded; the same copy converts it to channels-last order and ``dtype``.
    """
    source = input[piece.samples, :, piece.inside].permute(0, 2, 3, 1)
    samples, width, channels = source.shape[0], g.width + 2 * g.padding[1], g.channels // g.groups
    if source.shape[1:3] == (piece.height, width) and source.dtype == dtype:
        padded = source.contiguous()
    else:
        padded = input.new_zeros((samples, piece.height, width, g.channels), dtype=dtype)
        padded[:, piece.seen, g.padding[1] : g.padding[1] + g.width] = source
    down, across = width * g.channels, g.channels
    rows = piece.rows.stop - piece.rows.start
    size = (g.groups, samples, rows, g.columns, *g.kernel, channels)
    steps = (
        *(channels, piece.height * down, g.stride[0] * down, g.stride[1] * across),
        *(g.dilation[0] * down, g.dilation[1] * across, 1),
    )
    return padded.as_strided(size, steps, padded.storage_offset())


def _factors(g: Geometry, similarity: Tensor, piece: Piece, dtype: torch.dtype) -> Tensor:
    """The similarity of a piece, position by position; axes of size one broadcast.

    A full one is ``(sample, row, column, tap, tap)``. A diagonal one has the axes of
    :func:`_split`: ``(outer, 1, sample, row, column, tap row, tap column, inner, 1)``.
    """
    samples = slice(None) if similarity.shape[0] == 1 else piece.samples
    rows = slice(None) if similarity.shape[-2] == 1 else piece.rows
    part = similarity[samples, ..., rows, :].to(dtype)
    if part.dim() == 5:
        return _taps_last(part)
    split = part.reshape(part.shape[0], g.outer, g.inner, *g.kernel, *part.shape[2:])
    return split.permute(1, 0, 5, 6, 3, 4, 2)[:, None, ..., None]


def _taps_last(matrices: Tensor) -> Tensor:
    """``(N, K, K, P, Q)`` as ``(N, P, Q, K, K)``.

    A CPU transposes a dense matrix several times as fast as it copies axes in another order, and
    its small matrix products need dense matrices.
    """
    N, K, _, P, Q = matrices.shape
    if matrices.device.type != "cpu" or matrices.stride(-1) != 1:
        return matrices.movedim((-2, -1), (1, 2))
    result = matrices.new_empty(N, P * Q, K * K)
    # Some rows of a sample are not dense: a copy of them is.
    for source, target in zip(matrices.reshape(N, K * K, P * Q).contiguous(), result, strict=True):
        target.copy_(source.t())
    return result.view(N, P, Q, K, K)


def _split(g: Geometry, patches: Tensor) -> Tensor:
    """A panel with separate axes for the groups of the similarity.

    ``(outer, block, sample, row, column, tap row, tap column, inner, channel)``.
    """
    split: Tensor = patches.unflatten(0, (g.outer, g.blocks)).unflatten(-1, (g.inner, -1))
    return split


def _weigh(g: Geometry, patches: Tensor, factors: Tensor, panel: Tensor) -> None:
    """Fill a panel: patches weighted by a diagonal similarity, or mixed by a full one."""
    if factors.dim() == 5:
        _mix(factors, patches, panel)
    else:
        torch.mul(_split(g, patches), factors, out=_split(g, panel))


def _mix(factors: Tensor, patches: Tensor, panel: Tensor) -> None:
    """``panel[..., i, c] = sum_j factors[..., i, j] patches[..., j, c]``, all dense."""
    taps = factors.shape[-1]
    left = factors.expand(*patches.shape[:4], taps, taps).reshape(-1, taps, taps)
    right = patches.view(-1, taps, patches.shape[-1])
    torch.bmm(left, right, out=panel.view(right.shape))


class _Gradients:
    """The gradients of one backward pass, summed piece by piece."""

    def __init__(
        self,
        g: Geometry,
        input: Tensor,
        weight: Tensor,
        similarity: Tensor,
        mask: Sequence[bool],
        dtype: torch.dtype,
    ) -> None:
        self._g = g
        self._dtype = dtype
        self._matrix = _matrix(g, weight, dtype)
        self._input: Tensor | None = None
        self._weight: Tensor | None = None
        self._similarity: Tensor | None = None
        self._adds = False  # whether an entry of the similarity serves several positions
        # An element of the input is a sum of a few terms. An element of the weight, or of a
        # similarity that serves many samples or positions, has many: it is summed in the dtype
        # of the panels, which is float32 or wider on a CPU.
        if mask[0]:
            self._input = torch.zeros_like(input, memory_format=format_of(input))
        if mask[1]:
            wide = torch.promote_types(dtype, torch.float32)
            self._weight = torch.zeros_like(self._matrix, dtype=wide)
        if mask[2]:
            own = (similarity.shape[0], *similarity.shape[-2:]) == (g.batch, g.rows, g.columns)
            self._similarity = gradient_memory(similarity, similarity.dtype if own else dtype)
            self._adds = not own
            if self._adds or 0 in (g.channels, g.outputs):
                self._similarity.zero_()
        self._panel, self._other = _Buffer(self._matrix), _Buffer(self._matrix)
        self._gathered = _Buffer(self._matrix)

    def add(self, piece: Piece, gy: Tensor, input: Tensor, similarity: Tensor) -> None:
        """Add the contribution of one piece to every required gradient."""
        factors = _factors(self._g, similarity, piece, self._dtype)
        patches = _patches(self._g, input, piece, self._dtype)
        if similarity.dim() == 5:
            patches = self._gathered.copy_of(patches)
        gy = gy.to(self._dtype).reshape(self._g.groups, -1, gy.shape[-1])
        size = (*gy.shape[:2], self._matrix.shape[1])
        if self._input is not None or self._similarity is not None:
            torch.bmm(gy, self._matrix.transpose(1, 2), out=self._panel.view(size))
            gradient = self._panel.view(patches.shape)
            if self._similarity is not None:
                self._add_similarity(self._similarity, piece, gradient, patches)
            if self._input is not None:
                self._add_input(self._input, piece, gradient, factors)
        if self._weight is not None:
            _weigh(self._g, patches, factors, self._panel.view(patches.shape))
            self._weight += torch.bmm(self._panel.view(size).transpose(1, 2), gy)

    def result(self, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The three gradients; an empty tensor for a gradient that is not required."""
        g, none = self._g, weight.new_empty(0)
        gw = none
        if self._weight is not None:
            split = self._weight.view(g.groups, g.taps, -1, g.outputs // g.groups)
            gw = split.permute(0, 3, 2, 1).reshape(weight.shape).to(weight.dtype).contiguous()
        gx, gm = self._input, self._similarity
        gm = none.clone() if gm is None else gm.to(weight.dtype)
        return none if gx is None else gx, gw, gm

    def _add_similarity(
        self, total: Tensor, piece: Piece, gradient: Tensor, patches: Tensor
    ) -> None:
        """Dot products, over the channels of a group, of patches and their weighted gradient."""
        g = self._g
        if total.dim() == 4:
            products = _split(g, self._other.view(patches.shape))
            torch.mul(_split(g, gradient), _split(g, patches), out=products)
            sums = products.sum((1, -1))  # outer, sample, row, column, tap row, tap column, inner
            result = sums.permute(1, 0, 6, 4, 5, 2, 3).flatten(1, 4)
        else:
            right = patches.view(-1, g.taps, patches.shape[-1]).transpose(1, 2)
            products = torch.bmm(gradient.view(-1, g.taps, patches.shape[-1]), right)
            products = products.view(*patches.shape[:4], g.taps, g.taps)
            summed = products[0] if g.groups == 1 else products.sum(0)
            result = summed.movedim((1, 2), (-2, -1))
        place = total if total.shape[0] == 1 else total[piece.samples]
        place = place if total.shape[-2] == 1 else place[..., piece.rows, :]
        if self._adds:
            place += result.sum_to_size(place.shape)
        else:
            place.copy_(result)

    def _add_input(self, total: Tensor, piece: Piece, gradient: Tensor, factors: Tensor) -> None:
        """Weight the gradient of the patches and add each tap at the place where it was read."""
        g = self._g
        channels, width = gradient.shape[-1], g.width + 2 * g.padding[1]
        padded = gradient.new_zeros(gradient.shape[1], piece.height, width, g.groups, channels)
        full = factors.dim() == 5
        if full:
            mixed = self._other.view(gradient.shape)
            _mix(factors.transpose(-1, -2), gradient, mixed)
            gradient = mixed
        taps = _split(g, gradient).flatten(5, 6)
        for tap in range(g.taps):
            top = tap // g.kernel[1] * g.dilation[0]
            left = tap % g.kernel[1] * g.dilation[1]
            bottom = top + (gradient.shape[2] - 1) * g.stride[0] + 1
            right = left + (g.columns - 1) * g.stride[1] + 1
            place = padded[:, top : bottom : g.stride[0], left : right : g.stride[1]]
            place = _split(g, place.permute(3, 0, 1, 2, 4))
            if full:
                place += taps[:, :, :, :, :, tap]
            else:
                row, column = divmod(tap, g.kernel[1])
                place.addcmul_(taps[:, :, :, :, :, tap], factors[:, :, :, :, :, row, column])
        inner = padded[:, piece.seen, g.padding[1] : g.padding[1] + g.width].flatten(3)
        total[piece.samples, :, piece.inside] += inner.permute(0, 3, 1, 2)
