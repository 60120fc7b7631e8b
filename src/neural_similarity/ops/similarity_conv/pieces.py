"""Sizes of one call of the pure path, and the pieces of the batch that it works on in turn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..._shapes import output_size

__all__ = ["Geometry", "Piece", "format_of", "gradient_memory", "pieces_of"]

#: Bytes of a panel. On a CPU it fits into a shared cache; elsewhere it bounds the memory and keeps
#: the number of operations small.
_CPU_PANEL = 4 << 20
_ACCELERATOR_PANEL = 256 << 20


@dataclass(frozen=True)
class Geometry:
    """Sizes of one call; the padding is symmetric.

    The channels are split twice: into the groups of the convolution and those of the similarity.
    The smaller number of groups divides the larger one. So the channels form ``outer`` parts of
    ``blocks`` parts of ``inner`` parts, ``outer * blocks`` groups of the convolution and
    ``outer * inner`` groups of the similarity, and ``blocks`` or ``inner`` is 1.
    """

    batch: int
    channels: int
    height: int
    width: int
    outputs: int
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    groups: int
    similarity_groups: int
    rows: int
    columns: int

    @classmethod
    def of(
        cls,
        input: Tensor,
        weight: Tensor,
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        groups: int,
        similarity_groups: int,
    ) -> Geometry:
        batch, channels, *size = input.shape
        kernel = (weight.shape[2], weight.shape[3])
        rows, columns = (
            max(0, positions)
            for positions in map(output_size, size, kernel, stride, padding, dilation)
        )
        return cls(
            *(batch, channels, size[0], size[1], weight.shape[0], kernel),
            *((stride[0], stride[1]), (padding[0], padding[1]), (dilation[0], dilation[1])),
            *(groups, similarity_groups, rows, columns),
        )

    @property
    def taps(self) -> int:
        return self.kernel[0] * self.kernel[1]

    @property
    def outer(self) -> int:
        return min(self.groups, self.similarity_groups)

    @property
    def blocks(self) -> int:
        return self.groups // self.outer

    @property
    def inner(self) -> int:
        return self.similarity_groups // self.outer


@dataclass(frozen=True)
class Piece:
    """Some samples and some of their output rows, and the input rows that these need.

    ``inside`` are the needed input rows that exist; ``seen`` are the same rows, counted from the
    first needed row. Of the ``height`` needed rows, the others are padding.
    """

    samples: slice
    rows: slice
    inside: slice
    seen: slice
    height: int


def pieces_of(g: Geometry, input: Tensor) -> Iterator[Piece]:
    """Whole samples if they fit into a panel, otherwise rows of one sample."""
    budget = _CPU_PANEL if input.device.type == "cpu" else _ACCELERATOR_PANEL
    row = g.columns * g.taps * g.channels * max(input.element_size(), 4)
    rows = min(max(budget // row, 1), g.rows)
    samples = max(budget // (row * g.rows), 1) if rows == g.rows else 1
    for first in range(0, g.batch, samples):
        for start in range(0, g.rows, rows):
            stop = min(start + rows, g.rows)
            top = start * g.stride[0] - g.padding[0]
            bottom = (stop - 1) * g.stride[0] - g.padding[0] + (g.kernel[0] - 1) * g.dilation[0] + 1
            above = min(max(top, 0), g.height)
            below = max(min(bottom, g.height), above)
            yield Piece(
                slice(first, min(first + samples, g.batch)),
                slice(start, stop),
                slice(above, below),
                slice(above - top, below - top),
                bottom - top,
            )


def format_of(input: Tensor) -> torch.memory_format:
    """The memory format of results: channels-last if the input's channels are adjacent in memory.

    ``is_contiguous`` would compare strides with sizes, and under ``torch.compile`` that makes the
    compiled code valid for one image size only.
    """
    if input.stride(1) == 1 and input.stride(3) != 1:
        return torch.channels_last
    return torch.contiguous_format


def gradient_memory(similarity: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Memory for the gradient of a similarity: dense, with taps last if the similarity has."""
    taps = similarity.dim() - 3
    if similarity.stride(taps) != 1 or similarity.stride(-1) == 1:
        return similarity.new_empty(similarity.shape, dtype=dtype)
    N, *block, P, Q = similarity.shape
    last = tuple(range(-taps, 0))
    return similarity.new_empty((N, P, Q, *block), dtype=dtype).movedim(
        last, tuple(range(1, 1 + taps))
    )
