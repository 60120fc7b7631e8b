"""The predictor as one operation, against its separate operations."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.cases import EVEN, GEOMETRIES, Geometry
from support.fast_cases import FORMATS
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.utils.flop_counter import FlopCounterMode

from neural_similarity.ops.folded_predictor import folded_layer, folded_predictor
from neural_similarity.ops.similarity_conv import compiled, dispatch
from neural_similarity.ops.sphere import sphere_conv2d
from neural_similarity.ops.sphere_predictor import (
    NormalizedLayer,
    Window,
    can_fuse,
    fused_predictor,
    unfused_predictor,
)

pytestmark = pytest.mark.skipif(compiled.load() is None, reason="no compiled operator here")

CASES = {
    **{name: case for name, case in GEOMETRIES.items() if case.groups == 1},
    "one-tap": EVEN["one-tap"],
    "even": Geometry(3, 4, 6, (7, 9), (2, 4), stride=(3, 1), padding=(1, 2)),
    "far padding": Geometry(2, 3, 9, (2, 3), (2, 2), stride=(1, 2), padding=(5, 4)),
    "skipped pixels": Geometry(2, 5, 8, (11, 13), (1, 2), stride=(3, 4), padding=(0, 1)),
    "rgb": Geometry(2, 3, 16, (7, 11), (3, 3), padding=(1, 1)),
    "bands": Geometry(1, 33, 17, (70, 61), (3, 5), padding=(1, 2)),
    "strided bands": Geometry(2, 40, 8, (61, 90), (3, 3), (2, 2), (1, 1), (2, 1)),
    "row": Geometry(3, 6, 5, (1, 20), (1, 5), padding=(0, 2)),
}
"""``kernels`` are the hidden units."""


def window(case: Geometry) -> Window:
    return case.stride, case.padding, case.dilation


def operands(case: Geometry, **options: Any) -> list[Tensor]:
    """Input, and weight, gain and bias of both layers."""
    generator = torch.Generator().manual_seed(0)

    def random(*size: int) -> Tensor:
        return torch.randn(size, generator=generator, dtype=torch.float64)

    hidden, taps = case.kernels, case.taps
    sides = tuple(2 * min(side, 2) - 1 for side in case.kernel)
    tensors = [
        *(0.4 + random(case.batch, case.channels, *case.image),),
        *(random(hidden, case.channels, *case.kernel), 1 + random(hidden) / 4, random(hidden)),
        *(random(taps, hidden, *sides), 1 + random(taps) / 4, random(taps)),
    ]
    return [tensor.to(**options).requires_grad_() for tensor in tensors]


def layers(tensors: list[Tensor]) -> tuple[Tensor, NormalizedLayer, NormalizedLayer]:
    return (
        tensors[0],
        NormalizedLayer(*tensors[1:4], eps=1e-5),
        NormalizedLayer(*tensors[4:7], eps=1e-3),
    )


def fused(tensors: list[Tensor], case: Geometry) -> Tensor:
    assert can_fuse(*layers(tensors), window(case))
    return fused_predictor(*layers(tensors), window(case))[0]


def unfused(tensors: list[Tensor], case: Geometry) -> Tensor:
    return unfused_predictor(*layers(tensors), window(case))


def with_gradients(function: Any, tensors: list[Tensor], case: Geometry) -> list[Tensor]:
    output = function(tensors, case)
    direction = torch.linspace(-1, 2, output.numel(), dtype=torch.float64).cos()
    gradient = direction.reshape(output.shape).to(output.dtype)
    return [output.detach(), *torch.autograd.grad(output, tensors, gradient)]


@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("name", CASES)
def test_equals_the_single_operations(name: str, layout: str) -> None:
    case = CASES[name]
    tensors = operands(case)
    tensors[0] = tensors[0].detach().to(memory_format=FORMATS[layout]).requires_grad_()
    pairs = zip(
        with_gradients(fused, tensors, case), with_gradients(unfused, tensors, case), strict=True
    )
    for ours, truth in pairs:
        scale = float(truth.abs().max())
        torch.testing.assert_close(ours, truth, rtol=0, atol=1e-11 * max(scale, 1))


@pytest.mark.parametrize("sphere", [True, False], ids=["sphere", "conv"])
@pytest.mark.parametrize("name", CASES)
def test_folded_layers_equal_the_single_operations(name: str, sphere: bool) -> None:
    case = CASES[name]
    tensors = [tensor.detach() for tensor in operands(case)]
    input, first, _, a, last, _, b = tensors
    layers, before = (folded_layer(first, a), folded_layer(last, b)), torch.get_num_threads()
    if sphere:
        hidden = sphere_conv2d(input, first, a, *window(case), normalize="input")
    else:
        hidden = F.conv2d(input, first, a, *window(case))
    keep_size = (last.shape[2] // 2, last.shape[3] // 2)
    truth = F.conv2d(hidden.relu(), last, b, padding=keep_size)
    try:
        for threads, layout in itertools.product((1, 3), FORMATS.values()):
            torch.set_num_threads(threads)
            given = input.to(memory_format=layout)
            found = folded_predictor(given, *layers, window(case), sphere)
            torch.testing.assert_close(found, truth, rtol=1e-12, atol=1e-12)
    finally:
        torch.set_num_threads(before)


def test_operands_of_any_layout() -> None:
    case = CASES["one-tap"]
    tensors = operands(case)
    apart = [torch.stack([t.detach(), -t.detach()], -1)[..., 0].requires_grad_() for t in tensors]
    pairs = zip(
        with_gradients(fused, apart, case), with_gradients(unfused, tensors, case), strict=True
    )
    for one, other in pairs:
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


def test_float32_is_as_exact_as_the_single_operations() -> None:
    case = CASES["bands"]
    truth = with_gradients(unfused, operands(case), case)
    single = operands(case, dtype=torch.float32)
    plain, ours = (with_gradients(f, single, case) for f in (unfused, fused))
    for exact, theirs, own in zip(truth, plain, ours, strict=True):
        allowed = 2 * float((theirs - exact).abs().max()) + 1e-6 * float(exact.abs().max())
        assert float((own - exact).abs().max()) <= allowed


def test_derivatives() -> None:
    case = Geometry(2, 2, 2, (3, 4), (1, 3), stride=(1, 2), padding=(0, 1))
    tensors = operands(case)

    def function(*given: Tensor) -> Tensor:
        return fused(list(given), case)

    gradcheck(function, tensors, atol=1e-6, fast_mode=True)
    gradgradcheck(function, tensors, atol=1e-4, rtol=1e-3, fast_mode=True)


def test_a_weight_that_depends_on_the_input_counts_once() -> None:
    case = CASES["plain"]
    expected, found = (
        torch.autograd.grad(f(_dependent(tensors), case).square().sum(), tensors[0], create_graph=g)
        for f, g in ((unfused, True), (fused, True))
        for tensors in [operands(case)]
    )
    torch.testing.assert_close(found, expected)


def _dependent(tensors: list[Tensor]) -> list[Tensor]:
    return [tensors[0], tensors[1] * tensors[0].mean(), *tensors[2:]]


def test_statistics_are_those_of_the_batch() -> None:
    case = CASES["bands"]
    tensors = [tensor.detach() for tensor in operands(case)]
    output, first, last = fused_predictor(*layers(tensors), window(case))
    shifted = (output - tensors[6][:, None, None]) / tensors[5][:, None, None]
    assert first.values == last.values == output[:, 0].numel()
    # gain (z - mean) / sqrt(variance + eps): what is left has this variance
    torch.testing.assert_close(
        shifted.var((0, 2, 3), correction=0), last.variance / (last.variance + 1e-3)
    )
    assert (first.variance > 0).all()
    assert first.mean.shape == (case.kernels,)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_any_number_of_threads(threads: int) -> None:
    case, before = CASES["strided bands"], torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        ours = with_gradients(fused, operands(case), case)
    finally:
        torch.set_num_threads(before)
    for found, truth in zip(ours, with_gradients(unfused, operands(case), case), strict=True):
        torch.testing.assert_close(found, truth, rtol=1e-9, atol=1e-9)


def test_no_gradient_is_computed_for_what_needs_none() -> None:
    case = CASES["padded"]
    tensors = operands(case)
    tensors[0] = tensors[0].detach()
    ours = torch.autograd.grad(fused(tensors, case).cos().sum(), tensors[1:])
    truth = torch.autograd.grad(unfused(tensors, case).cos().sum(), tensors[1:])
    torch.testing.assert_close(ours, truth)


def test_not_a_number_stays_one() -> None:
    case = CASES["padded"]
    tensors = [tensor.detach() for tensor in operands(case)]
    tensors[0][0, 0, 2, 3] = torch.nan
    assert fused(tensors, case).isnan().all()
    assert unfused(tensors, case).isnan().all()


def test_a_constant_map_with_a_large_mean() -> None:
    case = Geometry(2, 8, 8, (9, 9), (1, 1))
    tensors = [tensor.detach() for tensor in operands(case, dtype=torch.float32)]
    tensors[0] = 1e-3 * tensors[0] + 1  # lengths and directions hardly vary
    wide = unfused([tensor.double() for tensor in tensors], case).float()
    allowed = 2 * (unfused(tensors, case) - wide).abs().max() + 1e-5
    assert (fused(tensors, case) - wide).abs().max() <= allowed


def test_who_must_see_the_single_operations() -> None:
    case = CASES["plain"]
    tensors = [tensor.detach() for tensor in operands(case, dtype=torch.float32)]

    def allowed() -> bool:
        return can_fuse(*layers(tensors), window(case))

    assert allowed()
    with torch.autocast("cpu", torch.bfloat16):
        assert not allowed()
    with FlopCounterMode(display=False):
        assert not allowed()
    with dispatch.only("panels"):
        assert not allowed()
    seen: list[bool] = []
    torch.func.vmap(lambda x: seen.append(allowed()) or x)(tensors[0])
    assert seen == [False]
    assert not can_fuse(*layers([tensors[0].double(), *tensors[1:]]), window(case))
    assert not can_fuse(*layers([tensors[0][:0], *tensors[1:]]), window(case))
