"""The paper's definition, literally: a CHV × CHV matrix between kernel and patch, in Python loops.

Slow on purpose and independent of the library: no unfold, no convolution, no einsum.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor


def block_diagonal(blocks: list[Tensor]) -> Tensor:
    """``diag(M_1, …, M_C)`` as one matrix; a one-dimensional block is a diagonal."""
    size = blocks[0].shape[0]
    rows = []
    for c, block in enumerate(blocks):
        dense = torch.diag(block) if block.dim() == 1 else block
        left = torch.zeros(size, c * size, dtype=dense.dtype)
        right = torch.zeros(size, (len(blocks) - 1 - c) * size, dtype=dense.dtype)
        rows.append(torch.cat([left, dense, right], dim=1))
    return torch.cat(rows, dim=0)


def patch(
    image: Tensor,
    channels: range,
    position: tuple[int, int],
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
) -> Tensor:
    """The flattened patch X, channel by channel, row by row; zero outside the image."""
    _, height, width = image.shape
    entries = []
    for c in channels:
        for a in range(kernel[0]):
            for b in range(kernel[1]):
                y = position[0] * stride[0] - padding[0] + a * dilation[0]
                x = position[1] * stride[1] - padding[1] + b * dilation[1]
                inside = 0 <= y < height and 0 <= x < width
                entries.append(image[c, y, x] if inside else image.new_zeros(()))
    return torch.stack(entries)


def similarity_conv2d(
    input: Tensor,
    weight: Tensor,
    matrix: Callable[[int, int, int, int], Tensor],
    *,
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
    groups: int,
) -> Tensor:
    """``Wᵀ M X`` at every position; ``matrix(n, o, p, q)`` gives the CHV × CHV matrix M."""
    batch, _, height, width = input.shape
    kernels, channels, kh, kw = weight.shape
    positions = (
        (height + 2 * padding[0] - dilation[0] * (kh - 1) - 1) // stride[0] + 1,
        (width + 2 * padding[1] - dilation[1] * (kw - 1) - 1) // stride[1] + 1,
    )
    rows = []
    for n in range(batch):
        for p in range(positions[0]):
            for q in range(positions[1]):
                for group in range(groups):
                    seen = range(group * channels, (group + 1) * channels)
                    X = patch(input[n], seen, (p, q), (kh, kw), stride, padding, dilation)
                    first, per_group = group * (kernels // groups), kernels // groups
                    for o in range(first, first + per_group):
                        rows.append(weight[o].reshape(-1) @ matrix(n, o, p, q) @ X)
    return torch.stack(rows).reshape(batch, *positions, kernels).movedim(-1, 1)


def scoped_matrix(similarity: Tensor, scope: str, channels: int, kernels: int, groups: int):
    """``matrix(n, o, p, q)`` of a static similarity with the given scope.

    ``channels`` counts those one kernel sees.
    """

    @cache
    def of_kernel(o: int) -> Tensor:
        if scope == "full":
            return block_diagonal([similarity])
        if scope == "layer":
            return block_diagonal([similarity] * channels)
        if scope == "kernel":
            return block_diagonal([similarity[o]] * channels)
        first = (o // (kernels // groups)) * channels
        return block_diagonal([similarity[first + c] for c in range(channels)])

    return lambda n, o, p, q: of_kernel(o)


def positional_matrix(
    similarity: Tensor, channels: int, kernels: int, groups: int, similarity_groups: int = 1
):
    """``matrix(n, o, p, q)`` of a similarity per position; axes of size one are broadcast.

    ``channels`` counts those one kernel sees. Channel c of the input has the diagonal of its
    similarity group: the entries of group 0 come first, then those of group 1, and so on.
    """
    per_group = channels * groups // similarity_groups

    @cache
    def at(n: int, group: int, p: int, q: int) -> Tensor:
        sample = similarity[0 if similarity.shape[0] == 1 else n]
        rows, columns = sample.shape[-2:]
        entries = sample[..., 0 if rows == 1 else p, 0 if columns == 1 else q]
        taps = entries.shape[0] // similarity_groups
        of_channel = [(group * channels + c) // per_group for c in range(channels)]
        return block_diagonal([entries[s * taps : (s + 1) * taps] for s in of_channel])

    return lambda n, o, p, q: at(n, o // (kernels // groups), p, q)


def kernel_matrix(similarity: Tensor, channels: int, kernels: int, similarity_groups: int):
    """``matrix(n, o, p, q)`` of a diagonal per position for each kernel and group of its channels.

    The entries of kernel 0 come first, then those of kernel 1, and so on.
    """

    @cache
    def at(n: int, o: int, p: int, q: int) -> Tensor:
        rows, columns = similarity.shape[-2:]
        entries = similarity[n, :, 0 if rows == 1 else p, 0 if columns == 1 else q]
        groups = entries.reshape(kernels, similarity_groups, -1)[o]
        return block_diagonal([groups[c * similarity_groups // channels] for c in range(channels)])

    return at


def global_similarity_conv2d(
    input: Tensor,
    weight: Tensor,
    matrix: Callable[[int], Tensor],
    *,
    dilation: tuple[int, int],
    groups: int,
) -> Tensor:
    """``W_Gᵀ M_G X_F``; ``matrix(n)`` gives the L × L block of M_G, the same for every channel."""
    batch, channels, height, width = input.shape
    kh, kw = weight.shape[2:]
    padding = (dilation[0] * (kh - 1) // 2, dilation[1] * (kw - 1) // 2)
    mixed = []
    for n in range(batch):
        M = matrix(n)
        for c in range(channels):
            X = [input[n, c, y, x] for y in range(height) for x in range(width)]
            mixed += [sum(M[i, j] * X[j] for j in range(len(X))) for i in range(len(X))]
    maps = torch.stack(mixed).reshape(input.shape)
    taps = block_diagonal([torch.ones(kh * kw, dtype=input.dtype)] * weight.shape[1])
    return similarity_conv2d(
        maps, weight, lambda n, o, p, q: taps,
        stride=(1, 1), padding=padding, dilation=dilation, groups=groups,
    )  # fmt: skip
