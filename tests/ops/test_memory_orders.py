"""Both fast paths of the similarity convolution on operands in any memory layout."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from support.cases import Geometry
from support.fast_cases import (
    BACKWARD,
    CASES,
    FORMATS,
    FORMS,
    FORWARD,
    everything,
    operands,
    same,
    settings,
)

from neural_similarity.ops.similarity_conv import operator


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_memory_is_laid_out_as_a_compiler_expects(path: str, dtype: torch.dtype) -> None:
    """Also of operands that repeat themselves in memory."""
    case = CASES["rgb"]
    for form in FORMS[:2]:
        x, weight, M = (t.to(dtype) for t in operands(case, form))
        taps_last = M.movedim((-2, -1), (1, 2)).contiguous().movedim((1, 2), (-2, -1))
        for similarity in (M, M[..., :1, :1].expand_as(M), taps_last[..., :1].expand_as(M)):
            for image in (x, x[..., :1, :1].expand_as(x), x[:1].expand_as(x)):
                tensors = (image, weight, similarity)
                y = FORWARD(*tensors, *settings(case, form))
                found = (y, *BACKWARD(y, *tensors, *settings(case, form), [True] * 3))
                like = operator._forward_fake(*tensors, *settings(case, form))
                fakes = operator._backward_fake(y, *tensors, *settings(case, form), [True] * 3)
                assert [t.stride() for t in found] == [t.stride() for t in (like, *fakes)]


def test_strided_operands(path: str) -> None:
    case = CASES["strided"]
    x, weight, similarity = operands(case)
    _, expected, *_ = everything(x, weight, similarity, case)
    x = x.repeat_interleave(2, 3)[..., ::2]
    similarity = similarity.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
    weight = weight.to(memory_format=torch.channels_last)
    same(FORWARD(x, weight, similarity, *settings(case)), expected, 1e-12)


def test_images_in_either_order_of_memory(path: str) -> None:
    """More images than the compiled path copies at a time; sides that no vector divides."""
    case = Geometry(5, 18, 21, (41, 37), (3, 2), padding=(1, 1))
    x, weight, M = operands(case)
    gy, *expected = everything(x, weight, M, case)
    for first, second in itertools.product(FORMATS.values(), repeat=2):
        x, gy = x.contiguous(memory_format=first), gy.contiguous(memory_format=second)
        found = BACKWARD(gy, x, weight, M, *settings(case), [True] * 3)
        y = FORWARD(x, weight, M, *settings(case))
        assert y.is_contiguous(memory_format=first)
        assert found[0].is_contiguous(memory_format=first)
        for one, other in zip((y, *found), expected, strict=True):
            same(one, other, 1e-12)


def test_weights_in_any_order_of_memory(path: str) -> None:
    for case in CASES.values():
        x, weight, similarity = operands(case, dtype=torch.float32)
        other = weight.to(memory_format=torch.channels_last)
        ours, theirs = (FORWARD(x, w, similarity, *settings(case)) for w in (weight, other))
        same(ours, theirs, 1e-5)


@pytest.mark.parametrize("name", ["strided", "wide groups", "rgb"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shared", [False, True], ids=["own", "shared"])
def test_taps_last_in_memory(path: str, name: str, form: str, shared: bool) -> None:
    """A similarity as a channels-last predictor leaves it; its gradient has the same order."""
    case = CASES[name]
    x, weight, similarity = operands(case, form, shared)
    gy, y, gx, gw, gm = everything(x, weight, similarity, case, form)
    axes = similarity.dim() - 3
    last = tuple(range(-axes, 0)), tuple(range(1, 1 + axes))
    turned = similarity.movedim(last[1], last[0]).contiguous().movedim(*last)
    same(FORWARD(x, weight, turned, *settings(case, form)), y, 1e-12)
    for mask in ([True] * 3, [False, True, True], [True, True, False]):
        found = BACKWARD(gy, x, weight, turned, *settings(case, form), mask)
        for required, one, other in zip(mask, found, (gx, gw, gm), strict=True):
            if required:
                same(one, other, 1e-12)
        if mask[2] and turned.stride(axes) == 1 != turned.stride(-1):
            assert found[2].stride() == turned.stride()


GAPS = {
    "none": lambda M: M,
    "in rows": lambda M: F.pad(M, (1, 2))[..., 1:-2],
    "after planes": lambda M: F.pad(M, (0, 0, 1, 1))[..., 1:-1, :],
    "after taps": lambda M: M.repeat_interleave(2, -3)[..., ::2, :, :],
    "after rows of M": lambda M: torch.cat((M, M), -3)[..., : M.shape[-3], :, :],
    "after images": lambda M: M.repeat_interleave(2, 0)[::2],
    "the same image": lambda M: M[:1].expand_as(M),
    "the same tap": lambda M: M[..., :1, :, :].expand_as(M),
    "columns first": lambda M: M.mT.contiguous().mT,
}
"""A similarity with gaps in memory, and in other orders."""


@pytest.mark.parametrize("gaps", GAPS)
@pytest.mark.parametrize("form", FORMS[:2])
def test_similarity_with_gaps_in_memory(path: str, form: str, gaps: str) -> None:
    """Images that hold more positions than a panel, in numbers that no vector divides."""
    for kernel, padding in (((3, 3), (1, 1)), ((1, 1), (0, 0))):
        case = Geometry(2, 5, 7, (23, 19), kernel, padding=padding)
        x, weight, M = operands(case, form)
        M = GAPS[gaps](M)
        gy, *expected = everything(x, weight, M, case, form)
        for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
            rounded = [t.to(dtype) for t in (gy, x, weight)]
            similarity = GAPS[gaps](operands(case, form)[2].to(dtype))
            assert similarity.stride() == M.stride()
            found = BACKWARD(*rounded, similarity, *settings(case, form), [True] * 3)
            y = FORWARD(*rounded[1:], similarity, *settings(case, form))
            for one, other in zip((y, *found), expected, strict=True):
                same(one, other, tolerance)
