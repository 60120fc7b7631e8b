"""Errors about similarities between positions of a map, and kernels that keep its size."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from ..errors import ShapeError
from .convolutions import layer_input, shape
from .numbers import is_whole

__all__ = [
    "attention_maps",
    "attention_width",
    "global_similarity",
    "map_size",
    "odd_kernel",
    "size_preserving",
]


def odd_kernel(where: str, kernel: tuple[int, int]) -> None:
    """Raise unless the kernel has a tap in its middle."""
    if min(kernel) < 1 or not all(side % 2 for side in kernel):
        raise ShapeError(
            f"{where}: expected a kernel with odd sides, got {kernel}. The window is centred on "
            f"the middle tap, and a kernel with an even side has none. Use a kernel such as (3, 3)."
        )


def size_preserving(
    where: str, stride: tuple[int, int], padding: tuple[int, int], expected: tuple[int, int]
) -> None:
    """Raise unless stride and padding keep the size of the map."""
    why = "A global similarity mixes the positions of a map and keeps its size"
    if stride != (1, 1):
        raise ShapeError(
            f"{where}: expected stride (1, 1), got {stride}. {why}. Add a pooling layer after it."
        )
    if padding != expected:
        raise ShapeError(
            f"{where}: expected padding {expected}, got {padding}. {why}. Leave padding out."
        )


def global_similarity(where: str, input: Tensor, similarity: Tensor) -> Literal["mask", "matrix"]:
    """Raise unless ``similarity`` fits the map; return which of the two forms it has."""
    layer_input(where, input)
    N, _, H, W = input.shape
    got, L = tuple(similarity.shape), H * W
    for form, block in (("mask", (H, W)), ("matrix", (L, L))):
        if got in (block, (N, *block), (1, *block)):
            return "mask" if form == "mask" else "matrix"
    raise ShapeError(
        f"{where}: expected similarity of one of the shapes {(H, W)}, {(L, L)}, {(N, H, W)}, "
        f"{(N, L, L)}, got {got}. The map has {H} x {W} positions, and the batch has {N} "
        f"sample(s). A similarity with 1 sample is used for all."
    )


def attention_maps(where: str, query: Tensor, key: Tensor, value: Tensor) -> None:
    """Raise unless the three maps have the same samples and positions."""
    if query.dim() != 4 or value.dim() != 4:
        raise ShapeError(
            f"{where}: expected query (N, D, H, W) and value (N, C, H, W), got {shape(query)} and "
            f"{shape(value)}."
        )
    if key.shape != query.shape:
        raise ShapeError(
            f"{where}: expected key of the same shape as query, {shape(query)}, got {shape(key)}. "
            f"Every position of the query is compared with every position of the key."
        )
    N, _, H, W = query.shape
    if (value.shape[0], *value.shape[2:]) != (N, H, W):
        raise ShapeError(
            f"{where}: expected value of shape ({N}, C, {H}, {W}), got {shape(value)}. "
            f"It must have the query's samples and positions."
        )


def attention_width(where: str, width: int) -> None:
    """Raise unless query and key have at least one channel."""
    if not is_whole(width) or width < 1:
        raise ShapeError(
            f"{where}: expected a whole width of at least 1 for query and key, got {width!r}."
        )


def map_size(where: str, got: tuple[int, int], expected: tuple[int, int], structure: str) -> None:
    """Raise unless a map has the size that a static similarity was created for."""
    if got != expected:
        raise ShapeError(
            f"{where}: expected a map of {expected[0]} x {expected[1]} positions, got "
            f"{got[0]} x {got[1]}. A similarity with structure {structure!r} fits one size only. "
            f"Resize the input, or use structure 'diagonal' or 'attention'."
        )
