"""The similarity convolution from standard operations, for runtimes such as onnxruntime.

A runtime spends its time on each operation and on each pass over the weighted patches, which are K
times as large as the input. All three forms below need few operations and two or three passes.
Which is fastest depends on the sizes; it was measured in onnxruntime on a CPU.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from ..._shapes import output_size

__all__ = ["by_kernels", "by_outputs", "by_rows", "similarity_conv2d"]

_FEW_CHANNELS = 16  # a pass over rows of fewer channels is slow
_MANY_CHANNELS = 128  # from here on, rows are faster even if there are fewer outputs


def similarity_conv2d(
    input: Tensor,
    weight: Tensor,
    similarity: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    similarity_groups: int,
) -> Tensor:
    """The form that is fastest for these sizes; arguments as in ``operator.py``."""
    settings = (stride, padding, dilation, groups, similarity_groups)
    channels, size = input.shape[1], (*input.shape[2:], *similarity.shape[-2:])
    fixed = all(isinstance(length, int) for length in size)
    if not fixed or groups > 1 or (channels < _FEW_CHANNELS and similarity.dim() == 4):
        return by_kernels(input, weight, similarity, *settings)
    margins = _margins(weight, padding, dilation)
    inside_out = tuple(stride) == (1, 1) and min(margins) >= 0 and similarity_groups == 1
    few_outputs = weight.shape[0] <= channels < _MANY_CHANNELS
    if inside_out and few_outputs and similarity.dim() == 4:
        return by_outputs(input, weight, similarity, *settings)
    return by_rows(input, weight, similarity, *settings)


def by_kernels(
    input: Tensor,
    weight: Tensor,
    similarity: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    similarity_groups: int,
) -> Tensor:
    """Patches by a convolution: each of its kernels is 1 at one tap and 0 elsewhere.

    It supports every size, even if unknown at export, and is fast with few channels.
    """
    channels, taps, kernel = input.shape[1], weight[0, 0].numel(), weight.shape[2:]
    rows, columns = map(output_size, input.shape[2:], kernel, stride, padding, dilation)
    ones = _ones_of_taps(input, kernel).repeat(channels, 1, 1, 1)
    patches = functional.conv2d(input, ones, None, stride, padding, dilation, channels)
    if similarity.dim() == 4:
        split = patches.unflatten(1, (similarity_groups, -1, taps))
        panel = split * similarity.unflatten(1, (similarity_groups, 1, taps))
    else:
        split = patches.unflatten(1, (channels, taps)).permute(0, 3, 4, 2, 1)
        panel = (similarity.permute(0, 3, 4, 1, 2) @ split).permute(0, 4, 3, 1, 2)
    panel = panel.reshape(-1, channels * taps, rows, columns)
    return functional.conv2d(panel, weight.reshape(weight.shape[0], -1, 1, 1), groups=groups)


def by_rows(
    input: Tensor,
    weight: Tensor,
    similarity: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    similarity_groups: int,
) -> Tensor:
    """Patches by indexing pixels, each a row of channels; then matrix products."""
    assert groups == 1
    channels, taps, kernel = input.shape[1], weight[0, 0].numel(), weight.shape[2:]
    rows, columns = map(output_size, input.shape[2:], kernel, stride, padding, dilation)
    # Channels are last before the padding, which then copies whole rows.
    pixels = functional.pad(
        input.permute(0, 2, 3, 1), (0, 0, padding[1], padding[1], padding[0], padding[0])
    )
    index = _pixels_of_patches(pixels, kernel, (rows, columns), stride, dilation)
    patches = pixels.flatten(1, 2).index_select(1, index).unflatten(1, (rows * columns, taps))
    similarity = _whole(similarity, rows, columns)
    if similarity.dim() == 4:
        places = similarity.shape[2] * similarity.shape[3]
        factors = similarity.permute(0, 2, 3, 1)
        if similarity_groups == 1:
            factors = factors.reshape(-1, places, taps, 1)
        else:
            patches = patches.unflatten(3, (similarity_groups, -1))
            factors = factors.reshape(-1, places, similarity_groups, taps).mT[..., None]
        panel = (patches * factors).flatten(2)
    else:
        panel = (similarity.permute(0, 3, 4, 1, 2).flatten(1, 2) @ patches).flatten(2)
    matrix = weight.permute(2, 3, 1, 0).reshape(taps * channels, -1)
    output: Tensor = (panel @ matrix).transpose(1, 2).unflatten(2, (rows, columns))
    return output


def by_outputs(
    input: Tensor,
    weight: Tensor,
    similarity: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    similarity_groups: int,
) -> Tensor:
    """Products of pixels and kernels, one for each tap, weighted and added where they belong.

    .. math:: y_{n,o,l} = \\sum_t M_{n,t,l} \\, z_{n,o,t,l+t}, \\qquad
        z_{n,o,t,q} = \\sum_c W_{o,c,t} \\, x_{n,c,q}

    Pixel q adds to position q − t, so M is shifted by the tap, and the sum is ``fold``.
    """
    assert tuple(stride) == (1, 1)
    assert groups == similarity_groups == 1
    outputs, taps, kernel = weight.shape[0], weight[0, 0].numel(), weight.shape[2:]
    rows, columns = map(output_size, input.shape[2:], kernel, stride, padding, dilation)
    margins = _margins(weight, padding, dilation)
    # In ``fold`` the last tap comes first: a tap to the left of a position is added to its right.
    factors = similarity.flip(1)
    if similarity.shape[-2:] != (1, 1):
        factors = _whole(factors, rows, columns)
        ones = _ones_of_taps(input, kernel)
        factors = functional.conv2d(factors, ones, None, 1, margins, dilation, taps)
    matrix = weight.flip(2, 3).flatten(2).transpose(1, 2).flatten(0, 1)
    products = (matrix @ input.flatten(2)).unflatten(1, (outputs, taps))
    pixels = factors.shape[2] * factors.shape[3]
    panel = (products * factors.reshape(-1, 1, taps, pixels)).flatten(1, 2)
    return functional.fold(panel, (rows, columns), tuple(kernel), tuple(dilation), margins)


def _margins(weight: Tensor, padding: Sequence[int], dilation: Sequence[int]) -> tuple[int, int]:
    """How far the outermost tap reaches beyond the padding, along each axis."""
    high, wide = (
        (k - 1) * d - p for k, d, p in zip(weight.shape[2:], dilation, padding, strict=True)
    )
    return high, wide


def _ones_of_taps(like: Tensor, kernel: Sequence[int]) -> Tensor:
    """A kernel for each tap, ``(K, 1, kh, kw)``: one there, and zero at the others."""
    taps = kernel[0] * kernel[1]
    return torch.eye(taps, dtype=like.dtype, device=like.device).reshape(taps, 1, *kernel)


def _pixels_of_patches(
    pixels: Tensor,
    kernel: Sequence[int],
    positions: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
) -> Tensor:
    """The index of each pixel of each patch in ``(N, H, W, C)`` flattened over H and W."""
    down, across = (
        stride[axis]
        * torch.arange(positions[axis], dtype=torch.int32, device=pixels.device)[:, None]
        + dilation[axis] * torch.arange(kernel[axis], dtype=torch.int32, device=pixels.device)
        for axis in (0, 1)
    )
    places: Tensor = down[:, None, :, None] * pixels.shape[2] + across[None, :, None, :]
    return places.flatten()


def _whole(similarity: Tensor, rows: int, columns: int) -> Tensor:
    """The similarity at every position, or the one M that serves all positions."""
    if similarity.shape[-2:] in ((1, 1), (rows, columns)):
        return similarity
    return similarity.expand(*similarity.shape[:-2], rows, columns)
