"""Geometries, operands and comparisons for the tests of the fast paths."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from neural_similarity.ops.similarity_conv import reference
from support.cases import DYNAMIC, EVEN, GEOMETRIES, KINDS, Geometry

FORWARD = torch.ops.neural_similarity.similarity_conv2d.default


BACKWARD = torch.ops.neural_similarity.similarity_conv2d_backward.default


CASES = {
    **GEOMETRIES,
    **EVEN,
    "depthwise, one output": Geometry(2, 6, 6, (7, 8), (3, 2), padding=(2, 1), groups=6),
    "planes": Geometry(3, 2, 2, (7, 8), (3, 2), (2, 1), (2, 1), (1, 2), groups=2),
    "wide": Geometry(5, 70, 45, (9, 6), (3, 3), padding=(1, 1)),
    "deep": Geometry(1, 200, 18, (23, 5), (3, 2), padding=(2, 1)),
    "far padding": Geometry(2, 3, 4, (2, 3), (2, 2), padding=(5, 4)),
    "single": Geometry(1, 8, 9, (31, 7), (5, 3), padding=(2, 1)),
    "tall": Geometry(2, 40, 21, (70, 31), (3, 2), (2, 1), (1, 1), groups=1),
    "wide groups": Geometry(3, 32, 10, (9, 8), (3, 2), padding=(1, 1), groups=2),
    "rgb": Geometry(2, 3, 5, (7, 11), (3, 3), padding=(1, 1)),
}


torch_warns_about_itself = pytest.mark.filterwarnings("ignore::DeprecationWarning")


FORMATS = {"nchw": torch.contiguous_format, "nhwc": torch.channels_last}


FORMS = DYNAMIC
"""The shapes of M that the operator accepts, by name."""

DIAGONAL, FULL = "diagonal per position", "matrix per position"

TRACED = (DIAGONAL, FULL, "matrix per image", "diagonal per group and image")
"""Forms for the tests that compile or export, which take seconds each."""


def operands(
    case: Geometry, form: str = DIAGONAL, shared: bool = False, **options: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """Random input, weight and similarity, the same for every dtype."""
    generator = torch.Generator().manual_seed(0)
    layout = options.pop("memory_format", torch.contiguous_format)

    def random(*size: int) -> Tensor:
        return torch.randn(size, generator=generator, dtype=torch.float64).to(**options)

    x = random(case.batch, case.channels, *case.image).to(memory_format=layout)
    weight = random(case.kernels, case.channels // case.groups, *case.kernel)
    weight = weight.to(memory_format=layout)
    return x, weight, random(*KINDS[form].shape(case, 1 if shared else case.batch))


def settings(case: Geometry, form: str = DIAGONAL) -> tuple[Any, ...]:
    return case.stride, case.padding, case.dilation, case.groups, KINDS[form].groups(case)


def everything(
    x: Tensor, weight: Tensor, similarity: Tensor, case: Geometry, form: str = DIAGONAL
) -> list[Tensor]:
    """Reference output and gradients, and the output's gradient they are for."""
    leaves = [t.detach().requires_grad_() for t in (x, weight, similarity)]
    y = reference.similarity_conv2d(*leaves, *settings(case, form))
    gy = torch.randn(y.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    gy = gy.to(y.dtype)
    return [gy, y.detach(), *torch.autograd.grad(y, leaves, gy)]


def same(found: Tensor, expected: Tensor, tolerance: float) -> None:
    assert found.shape == expected.shape
    scale = expected.abs().max().clamp(min=1e-30) if expected.numel() else 1.0
    error = (found.double() - expected.double()).abs() / scale
    assert not error.numel() or error.max() <= tolerance, error.max()


def equals_reference(tensors: list[Tensor], settings: tuple[Any, ...], dtype: torch.dtype) -> None:
    """The operator in ``dtype`` and its gradients, compared with the reference in float64.

    ``tensors`` are input, weight, similarity and the output's gradient, in float64.
    """
    *leaves, gy = tensors
    for leaf in leaves:
        leaf.requires_grad_()
    y = reference.similarity_conv2d(*leaves, *settings)
    expected = [y.detach(), *torch.autograd.grad(y, leaves, gy)]
    ours = [tensor.detach().to(dtype) for tensor in tensors]
    found = [
        FORWARD(*ours[:3], *settings),
        *BACKWARD(ours[3], *ours[:3], *settings, [True] * 3),
    ]
    # Sums of up to some thousand products of numbers around one, relative to the largest sum.
    tolerance = 1e-12 if dtype == torch.float64 else 1e-5
    for one, truth in zip(found, expected, strict=True):
        same(one, truth, tolerance)
