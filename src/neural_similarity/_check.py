"""The only place that words errors about names and shapes.

Form: ``<where>: expected <what> <value>, got <value>. <why>. <what to do>.``
"""

from __future__ import annotations

import difflib
import operator
from collections.abc import Iterable
from numbers import Real
from typing import Any, Literal

from torch import Tensor

from ._shapes import output_size
from .errors import ShapeError, UnknownNameError

__all__ = [
    "attention_maps",
    "attention_width",
    "conv_output_shape",
    "global_similarity",
    "is_whole",
    "known_name",
    "map_size",
    "odd_kernel",
    "plain_number",
    "real_numbers",
    "shape",
    "similarity_shape",
    "size_preserving",
    "weight_similarity",
    "whole_numbers",
]


def known_name(where: str, what: str, got: object, choices: Iterable[str]) -> None:
    """Raise unless ``got`` is one of ``choices``."""
    choices = sorted(choices)
    if got in choices:
        return
    near = difflib.get_close_matches(str(got), choices, n=1, cutoff=0.4)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise UnknownNameError(
        f"{where}: expected {what} to be one of {', '.join(map(repr, choices))}, got {got!r}.{hint}"
    )


def plain_number(value: Any) -> Any:
    """A whole number of any library, such as NumPy's, as an int; anything else as it is."""
    if isinstance(value, bool):
        return value
    try:
        return operator.index(value)
    except TypeError:
        return value


def is_whole(value: object) -> bool:
    """Whether ``value`` is a whole number, of any library; a truth value is none."""
    number = plain_number(value)
    return isinstance(number, int) and not isinstance(number, bool)


def whole_numbers(where: str, **values: object) -> None:
    """Raise unless each value is a whole number of at least one."""
    for what, value in values.items():
        number = plain_number(value)
        if not is_whole(number) or number < 1:
            raise ShapeError(
                f"{where}: expected {what} to be a whole number of at least 1, got {value!r}."
            )


def real_numbers(where: str, **values: object) -> None:
    """Raise unless each value is a number."""
    for what, value in values.items():
        if not isinstance(value, Real) or isinstance(value, bool):
            raise ShapeError(f"{where}: expected {what} to be a number, got {value!r}.")


def conv_output_shape(
    where: str,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
    groups: int,
) -> tuple[int, int]:
    """Check the arguments of a two-dimensional convolution and return (P, Q)."""
    if input.dim() != 4:
        raise ShapeError(
            f"{where}: expected input of shape (N, C, H, W) or (C, H, W), got {shape(input)}."
        )
    if weight.dim() != 4:
        raise ShapeError(
            f"{where}: expected weight of shape (O, C/G, kh, kw), got {shape(weight)}."
        )
    for what, values, least in (
        ("stride", stride, 1),
        ("dilation", dilation, 1),
        ("padding", padding, 0),
    ):
        if min(values) < least:
            raise ShapeError(f"{where}: expected {what} of at least {least}, got {values}.")
    if groups < 1:
        raise ShapeError(f"{where}: expected groups of at least 1, got {groups}.")
    channels, kernels = input.shape[1], weight.shape[0]
    if channels != weight.shape[1] * groups:
        raise ShapeError(
            f"{where}: expected input with {weight.shape[1] * groups} channels, got {channels}. "
            f"The weight {shape(weight)} reads {weight.shape[1]} channels in each of {groups} "
            f"group(s). Change in_channels, or groups."
        )
    if kernels % groups:
        raise ShapeError(
            f"{where}: expected weight whose {kernels} kernels divide by groups, got groups "
            f"{groups}. Every group has equally many kernels."
        )
    if bias is not None and bias.shape != (kernels,):
        raise ShapeError(f"{where}: expected bias of shape ({kernels},), got {shape(bias)}.")
    sizes = list(map(output_size, input.shape[2:], weight.shape[2:], stride, padding, dilation))
    if min(sizes) < 1:
        padded = tuple(s + 2 * p for s, p in zip(input.shape[2:], padding, strict=True))
        reach = tuple(d * (k - 1) + 1 for k, d in zip(weight.shape[2:], dilation, strict=True))
        raise ShapeError(
            f"{where}: expected a padded input of at least {reach}, got {padded}. "
            f"The kernel is larger than the image. Use a larger image, more padding, or a smaller "
            f"kernel or dilation."
        )
    return sizes[0], sizes[1]


def similarity_shape(
    where: str, similarity: Tensor, batch: int, taps: int, positions: tuple[int, int]
) -> None:
    """Raise unless ``similarity`` has one of the four shapes the operation takes."""
    P, Q = positions
    wanted = {
        1: (taps,),
        2: (taps, taps),
        4: (batch, taps, P, Q),
        5: (batch, taps, taps, P, Q),
    }
    expected = wanted.get(similarity.dim())
    if expected is None:
        shapes = ", ".join(str(s) for s in wanted.values())
        raise ShapeError(
            f"{where}: expected similarity of one of the shapes {shapes}, got {shape(similarity)}. "
            f"The kernel has {taps} taps and the output {P} x {Q} positions."
        )
    got = tuple(similarity.shape)
    broadcast = len(expected) > 2 and got == (1, *expected[1:])
    if got != expected and not broadcast:
        raise ShapeError(
            f"{where}: expected similarity of shape {expected}, got {got}. "
            f"The batch has {batch} sample(s) (or 1 for all), the kernel {taps} taps, the output "
            f"{P} x {Q} positions."
        )


def weight_similarity(
    where: str, similarity: Tensor, leading: tuple[int, ...], size: int, scope: str
) -> None:
    """Raise unless ``similarity`` is ``(*leading, size)`` or ``(*leading, size, size)``."""
    diagonal, matrix = (*leading, size), (*leading, size, size)
    if tuple(similarity.shape) not in (diagonal, matrix):
        raise ShapeError(
            f"{where}: expected similarity of shape {diagonal} or {matrix} for "
            f"scope {scope!r}, got {shape(similarity)}."
        )


def odd_kernel(where: str, kernel: tuple[int, int]) -> None:
    """Raise unless the kernel has a middle."""
    if min(kernel) < 1 or not all(side % 2 for side in kernel):
        raise ShapeError(
            f"{where}: expected a kernel with odd sides, got {kernel}. A global similarity keeps "
            f"the size of the map, and an even kernel has no middle. Use a kernel such as (3, 3)."
        )


def size_preserving(
    where: str, stride: tuple[int, int], padding: tuple[int, int], wanted: tuple[int, int]
) -> None:
    """Raise unless stride and padding keep the size of the map."""
    why = "A global similarity mixes the positions of a map and keeps its size"
    if stride != (1, 1):
        raise ShapeError(
            f"{where}: expected stride (1, 1), got {stride}. {why}. Put a pooling layer behind it."
        )
    if padding != wanted:
        raise ShapeError(
            f"{where}: expected padding {wanted}, got {padding}. {why}. Leave padding out."
        )


def global_similarity(where: str, input: Tensor, similarity: Tensor) -> Literal["mask", "matrix"]:
    """Raise unless ``similarity`` fits the map; tell which of the two forms it has."""
    if input.dim() != 4:
        raise ShapeError(
            f"{where}: expected input of shape (N, C, H, W) or (C, H, W), got {shape(input)}."
        )
    N, _, H, W = input.shape
    got, L = tuple(similarity.shape), H * W
    for form, block in (("mask", (H, W)), ("matrix", (L, L))):
        if got in (block, (N, *block), (1, *block)):
            return "mask" if form == "mask" else "matrix"
    raise ShapeError(
        f"{where}: expected similarity of one of the shapes {(H, W)}, {(L, L)}, {(N, H, W)}, "
        f"{(N, L, L)}, got {got}. The map has {H} x {W} positions, the batch {N} sample(s) (or 1 "
        f"for all)."
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
            f"{where}: expected key of the query's shape {shape(query)}, got {shape(key)}. "
            f"A position is compared with a position."
        )
    N, _, H, W = query.shape
    if (value.shape[0], *value.shape[2:]) != (N, H, W):
        raise ShapeError(
            f"{where}: expected value of shape {(N, 'C', H, W)}, got {shape(value)}. "
            f"It has the query's samples and positions."
        )


def attention_width(where: str, width: int) -> None:
    """Raise unless query and key have a channel."""
    if width < 1:
        raise ShapeError(f"{where}: expected a width of at least 1 for query and key, got {width}.")


def map_size(where: str, got: tuple[int, int], wanted: tuple[int, int], structure: str) -> None:
    """Raise unless a map has the size that a static similarity was made for."""
    if got != wanted:
        raise ShapeError(
            f"{where}: expected a map of {wanted[0]} x {wanted[1]} positions, got "
            f"{got[0]} x {got[1]}. A similarity of structure {structure!r} belongs to one size. "
            f"Resize the input, or use structure 'diagonal' or 'attention'."
        )


def shape(tensor: Tensor) -> str:
    """A shape as people write it."""
    return str(tuple(tensor.shape))
