"""One M for each group of channels, in groups that fill a part of a vector, or several.

A vector has 4, 8 or 16 numbers, depending on the processor and the type: so some of these groups
are half a vector, some a quarter, and some a vector and a half.
"""

from __future__ import annotations

import pytest
import torch
from support.cases import Geometry
from support.fast_cases import FORMATS, equals_reference


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("kernels", ["for all channels", "in groups", "depthwise"])
@pytest.mark.parametrize("width", [2, 4, 8, 12, 24])
def test_equals_the_reference(
    path: str, width: int, kernels: str, layout: str, dtype: torch.dtype
) -> None:
    S, generator = 4, torch.Generator().manual_seed(0)
    C = S * width
    groups = {"for all channels": 1, "in groups": 2, "depthwise": C}[kernels]
    case = Geometry(2, C, C if groups == C else 6, (7, 9), (3, 2), (2, 1), (1, 1), groups=groups)
    sizes = (
        (case.batch, C, *case.image),
        (case.kernels, C // groups, *case.kernel),
        (case.batch, S * case.taps, *case.positions),
        (case.batch, case.kernels, *case.positions),
    )
    tensors = [torch.randn(size, generator=generator, dtype=torch.float64) for size in sizes]
    for place in (0, 3):
        tensors[place] = tensors[place].to(memory_format=FORMATS[layout])
    equals_reference(tensors, (case.stride, case.padding, case.dilation, groups, S), dtype)
