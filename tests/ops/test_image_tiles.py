"""One M per image against the reference, in geometries that reach every kind of tile.

The register tiles have one or two vectors of outputs. A vector has 4, 8 or 16 numbers, depending on
the processor and the type, so some sizes here are whole vectors on each.
"""

from __future__ import annotations

import pytest
import torch
from support.cases import Geometry
from support.fast_cases import FORMATS, equals_reference
from torch import Tensor

TILES = {
    "one vector, whole": Geometry(3, 37, 16, (7, 9), (3, 3), padding=(1, 1)),
    "one vector of doubles, whole": Geometry(3, 19, 8, (9, 8), (3, 3), padding=(1, 1)),
    "two vectors, whole": Geometry(2, 33, 32, (6, 8), (3, 3), padding=(1, 1)),
    "three vectors, whole": Geometry(2, 20, 48, (8, 7), (3, 2), padding=(1, 0)),
    "rows of a small map, blocks of taps": Geometry(2, 50, 21, (10, 9), (7, 7), padding=(3, 3)),
    "groups": Geometry(3, 80, 32, (7, 8), (3, 3), padding=(1, 1), groups=2),
    "stride": Geometry(2, 24, 16, (15, 14), (3, 3), (2, 2), (1, 1)),
    "dilation": Geometry(2, 24, 16, (11, 12), (3, 3), padding=(2, 1), dilation=(2, 1)),
    "one tap": Geometry(3, 35, 20, (7, 8), (1, 1)),
    "bands of a tall map": Geometry(5, 70, 16, (90, 7), (3, 3), padding=(1, 1)),
}
SPANS = ("one for all channels", "one for each channel", "matrix")


def operands(case: Geometry, span: str, layout: torch.memory_format) -> tuple[list[Tensor], int]:
    """Input, weight, similarity and the output's gradient; and the number of similarity groups."""
    generator = torch.Generator().manual_seed(0)
    K, N = case.taps, case.batch
    groups = case.channels if span == "one for each channel" else 1
    sizes = (
        (N, case.channels, *case.image),
        (case.kernels, case.channels // case.groups, *case.kernel),
        (N, K, K, 1, 1) if span == "matrix" else (N, groups * K, 1, 1),
        (N, case.kernels, *case.positions),
    )
    tensors = [torch.randn(size, generator=generator, dtype=torch.float64) for size in sizes]
    for place in (0, 3):
        tensors[place] = tensors[place].to(memory_format=layout)
    return tensors, groups


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("span", SPANS)
@pytest.mark.parametrize("name", TILES)
def test_equals_the_reference(
    path: str, name: str, span: str, layout: str, dtype: torch.dtype
) -> None:
    check(name, span, FORMATS[layout], dtype)


@pytest.mark.parametrize("span", SPANS)
@pytest.mark.parametrize("name", ["groups", "bands of a tall map"])
def test_several_threads_equal_the_reference(name: str, span: str) -> None:
    """With batches of 3 and 5, two threads get several images each."""
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        check(name, span, torch.channels_last, torch.float64)
    finally:
        torch.set_num_threads(before)


def check(name: str, span: str, layout: torch.memory_format, dtype: torch.dtype) -> None:
    case = TILES[name]
    tensors, groups = operands(case, span, layout)
    equals_reference(
        tensors, (case.stride, case.padding, case.dilation, case.groups, groups), dtype
    )
