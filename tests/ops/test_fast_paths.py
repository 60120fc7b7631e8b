"""Both fast paths of the similarity convolution against the reference, and inside PyTorch."""

from __future__ import annotations

import itertools
import re
import threading

import pytest
import torch
import torch._dynamo.testing
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
from torch import Tensor

from neural_similarity.errors import ShapeError
from neural_similarity.ops import similarity_conv2d
from neural_similarity.ops.similarity_conv import compiled, operator, reference


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("layout", FORMATS)
def test_float64(path: str, name: str, form: str, layout: str) -> None:
    """Images share their similarity in every other case: each form and geometry has all four."""
    case = CASES[name]
    places = (list(CASES).index(name), FORMS.index(form), list(FORMATS).index(layout))
    shared = sum(places) % 2 == 1
    ours = operands(case, form, shared, memory_format=FORMATS[layout])
    gy, *expected = everything(*ours, case, form)
    y = FORWARD(*ours, *settings(case, form))
    assert y.is_contiguous(memory_format=FORMATS[layout])
    found = BACKWARD(gy, *ours, *settings(case, form), [True] * 3)
    for one, other in zip((y, *found), expected, strict=True):
        same(one, other, 1e-12)


@pytest.mark.parametrize("name", ["strided", "grouped", "wide", "rgb", "whole rows"])
@pytest.mark.parametrize("form", FORMS)
def test_mask(path: str, name: str, form: str) -> None:
    # An image whose 24 weighted numbers fill a row of the compiled path's panel.
    whole_rows = Geometry(2, 3, 5, (6, 9), (2, 4), padding=(1, 2))
    case = whole_rows if name == "whole rows" else CASES[name]
    ours = operands(case, form)
    gy, _, *expected = everything(*ours, case, form)
    for mask in itertools.product([False, True], repeat=3):
        found = BACKWARD(gy, *ours, *settings(case, form), list(mask))
        for wanted, one, other in zip(mask, found, expected, strict=True):
            if wanted:
                same(one, other, 1e-12)
            else:
                assert one.numel() == 0


EXPANDABLE = ("diagonal per column", "matrix per row")


@pytest.mark.parametrize("form", EXPANDABLE)
@pytest.mark.parametrize("name", CASES)
def test_rows_and_columns_give_the_bits_of_positions(path: str, name: str, form: str) -> None:
    """So their rounding needs no test of its own."""
    case = CASES[name]
    x, weight, similarity = operands(case, form, dtype=torch.float32)
    expanded = similarity.expand(*similarity.shape[:-2], *case.positions).contiguous()
    gy = torch.randn(case.batch, case.kernels, *case.positions)
    mask = [True, True, False]
    ours, theirs = (
        [FORWARD(x, weight, M, *settings(case)), *BACKWARD(gy, x, weight, M, *settings(case), mask)]
        for M in (similarity, expanded)
    )
    for one, other in zip(ours, theirs, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("form", [name for name in FORMS if name not in EXPANDABLE])
def test_float32_as_exact_as_plain(path: str, name: str, form: str) -> None:
    case = CASES[name]
    exact = operands(case, form)
    gy, *expected = everything(*exact, case, form)
    ours = operands(case, form, dtype=torch.float32)
    _, *plain = everything(*ours, case, form)
    found = [
        FORWARD(*ours, *settings(case, form)),
        *BACKWARD(gy.float(), *ours, *settings(case, form), [True] * 3),
    ]
    for one, theirs, truth in zip(found, plain, expected, strict=True):
        tiny = 1e-7 * truth.abs().max().item() * 4
        allowed = 2 * (theirs - truth).abs().max().item() + tiny
        assert (one - truth).abs().max().item() <= allowed


@pytest.mark.parametrize("name", ["strided", "grouped", "wide"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_reduced_precision(path: str, name: str, form: str, dtype: torch.dtype) -> None:
    case = CASES[name]
    rounded = operands(case, form, dtype=dtype)
    x, weight, similarity = (t.double() for t in rounded)
    gy, *expected = everything(x, weight, similarity, case, form)
    gy_rounded = gy.to(dtype)
    found = [
        FORWARD(*rounded, *settings(case, form)),
        *BACKWARD(gy_rounded, *rounded, *settings(case, form), [True] * 3),
    ]
    for one, truth in zip(found, expected, strict=True):
        assert one.dtype == dtype
        same(one, truth, 2e-2)


@pytest.mark.parametrize("threads", [1, 2, 3, 5])
@pytest.mark.parametrize("name", ["single", "deep", "strided"])
def test_any_number_of_threads(threads: int, name: str) -> None:
    if (kernels := compiled.load()) is None:
        pytest.skip("no compiler")
    case, before = CASES[name], torch.get_num_threads()
    ours = operands(case)
    gy, *expected = everything(*ours, case)
    try:
        torch.set_num_threads(threads)
        runs = [
            [
                kernels.forward(*ours, *settings(case)),
                *kernels.backward(gy, *ours, *settings(case), [True] * 3),
            ]
            for _ in range(2)
        ]
    finally:
        torch.set_num_threads(before)
    for one, again, truth in zip(*runs, expected, strict=True):
        same(one, truth, 1e-12)
        assert torch.equal(one, again)


def test_no_groups_are_an_error_and_not_a_crash() -> None:
    if (kernels := compiled.load()) is None:
        pytest.skip("no compiler")
    case = CASES["single"]
    with pytest.raises(RuntimeError):
        kernels.forward(*operands(case), *settings(case)[:-1], 0)


def test_several_threads_at_once(path: str) -> None:
    case = CASES["wide"]
    ours = operands(case)
    expected = FORWARD(*ours, *settings(case))
    found: list[Tensor] = []
    workers = [
        threading.Thread(target=lambda: found.append(FORWARD(*ours, *settings(case))))
        for _ in range(4)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(found) == 4
    for one in found:
        same(one, expected, 1e-13)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shared", [False, True], ids=["own", "shared"])
def test_empty(path: str, form: str, shared: bool) -> None:
    case = Geometry(0, 3, 5, (7, 6), (3, 2))
    ours = operands(case, form, shared)
    y = FORWARD(*ours, *settings(case, form))
    assert y.shape == (0, 5, *case.positions)
    found = BACKWARD(y, *ours, *settings(case, form), [True] * 3)
    for one, like in zip(found, ours, strict=True):
        assert one.shape == like.shape
        assert not one.any()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("place", range(4), ids=["input", "weight", "similarity", "gradient"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")], ids=str)
def test_nan_lands_where_the_reference_puts_it(
    path: str, place: int, form: str, value: float
) -> None:
    """At a corner, where taps lie in the padding: zero times NaN is NaN there too."""
    case = CASES["rgb"]
    ours = operands(case, form)
    gy = everything(*ours, case, form)[0]
    (*ours, gy)[place].view(-1)[0] = value
    leaves = [tensor.clone().requires_grad_() for tensor in ours]
    y = reference.similarity_conv2d(*leaves, *settings(case, form))
    expected = [y, *torch.autograd.grad(y, leaves, gy)]
    found = [
        FORWARD(*ours, *settings(case, form)),
        *BACKWARD(gy, *ours, *settings(case, form), [True] * 3),
    ]
    for one, truth in zip(found, expected, strict=True):
        assert torch.equal(one.isfinite(), truth.isfinite())
        assert value == float("inf") or torch.equal(one.isnan(), truth.isnan())
    assert not all(one.isfinite().all() for one in found)


def test_misfits_are_refused(path: str) -> None:
    case = CASES["rgb"]
    x, weight, similarity = operands(case)
    for misfit in (
        (x[:, :2], weight, similarity),
        (x, weight, similarity[:, 1:]),
        (x, weight, similarity[..., 1:]),
        (x, weight, similarity.expand(2, -1, -1, -1)[:0]),
        (x.float(), weight, similarity),
        (x, weight[0], similarity),
        (x[None], weight, similarity),
        (x[..., :0], weight, similarity),
        (x, weight[..., :0], similarity[:, :0]),
    ):
        with pytest.raises(ShapeError, match=r"^similarity_conv2d: expected ") as public:
            similarity_conv2d(*misfit, None, *settings(case))
        with pytest.raises(ShapeError) as inner:
            FORWARD(*misfit, *settings(case))
        assert str(inner.value) == str(public.value)


def test_the_operator_takes_no_static_similarity(path: str) -> None:
    case = CASES["rgb"]
    x, weight, similarity = operands(case)
    shape = re.escape(str(tuple(similarity.shape)))
    with pytest.raises(ShapeError, match=rf"one of the shapes {shape}, \(.*\), got \(9,\)\."):
        FORWARD(x, weight, torch.rand(9).double(), *settings(case))


SMALL = {
    "oblong": Geometry(2, 2, 3, (4, 5), (3, 2), (2, 1), (1, 1), (1, 2)),
    "groups": Geometry(2, 4, 2, (3, 4), (2, 3), (1, 2), (1, 1), (1, 1), 2),
}


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shared", [False, True], ids=["own", "shared"])
def test_gradcheck(path: str, name: str, form: str, shared: bool) -> None:
    case = SMALL[name]
    ours = [t.requires_grad_() for t in operands(case, form, shared)]

    def run(x: Tensor, weight: Tensor, similarity: Tensor) -> Tensor:
        return operator.similarity_conv2d(x, weight, similarity, *settings(case, form))

    assert torch.autograd.gradcheck(run, ours, fast_mode=True)
    assert torch.autograd.gradgradcheck(run, ours, fast_mode=True)


def test_third_order(path: str) -> None:
    case = SMALL["oblong"]
    ours = [t.requires_grad_() for t in operands(case)]

    def second(*tensors: Tensor) -> tuple[Tensor, ...]:
        x, weight, similarity = tensors
        y = operator.similarity_conv2d(x, weight, similarity, *settings(case)).square().sum()
        first = torch.autograd.grad(y, tensors, create_graph=True)
        total = torch.stack([g.square().sum() for g in first]).sum()
        return torch.autograd.grad(total, tensors, create_graph=True)

    assert torch.autograd.gradcheck(second, ours, fast_mode=True)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shared", [False, True], ids=["own", "shared"])
def test_traceable(name: str, form: str, shared: bool) -> None:
    case = CASES[name]
    ours = operands(case, form, shared)
    x, weight, similarity = ours
    same(
        operator.traceable(x, weight, similarity, *settings(case, form)),
        reference.similarity_conv2d(*ours, *settings(case, form)),
        1e-12,
    )


def test_backward_inside_autocast_is_not_rounded(path: str) -> None:
    case = CASES["wide"]
    ours = [t.requires_grad_() for t in operands(case, dtype=torch.float32)]
    y = operator.similarity_conv2d(*ours, *settings(case))
    expected = torch.autograd.grad(y.sum(), ours, retain_graph=True)
    with torch.autocast("cpu", torch.bfloat16):
        found = torch.autograd.grad(y.sum(), ours)
    for one, other in zip(found, expected, strict=True):
        same(one, other, 1e-6)


def test_a_gradient_of_another_size_is_refused(path: str) -> None:
    case = CASES["rgb"]
    x, weight, similarity = operands(case)
    message = r"^similarity_conv2d_backward: expected grad_output .* \(.*\), got \(1, 5, 2, 2\)\."
    with pytest.raises(ShapeError, match=message):
        BACKWARD(
            torch.randn(1, 5, 2, 2).double(), x, weight, similarity, *settings(case), [True] * 3
        )
    with pytest.raises(ShapeError, match=r"same floating-point dtype, got torch.complex128"):
        FORWARD(x + 0j, weight + 0j, similarity + 0j, *settings(case))
