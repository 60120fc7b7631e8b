"""M as a factor per channel times a factor per tap, against the definition with M written out."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from support.cases import Geometry
from support.fast_cases import CASES, FORMATS, same
from torch import Tensor, nn

import neural_similarity as ns
from neural_similarity.errors import ShapeError
from neural_similarity.ops.factored_similarity import (
    ConvSettings,
    can_factor,
    factored_conv2d,
    written_out_conv2d,
)
from neural_similarity.ops.similarity_conv import compiled, dispatch, reference
from neural_similarity.ops.spread_factors import spread_factors

pytestmark = pytest.mark.skipif(compiled.load() is None, reason="no compiler")

FACTORED = {name: case for name, case in CASES.items() if case.groups < case.channels}
OVER = ("channels", "both")
NAMES = ("output", "input", "weight", "factors")


def settings(case: Geometry) -> ConvSettings:
    return ConvSettings(case.stride, case.padding, case.dilation, case.groups)


def operands(case: Geometry, over: str, layout: str = "nhwc", **options: Any) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    count = case.channels + (case.taps if over == "both" else 0)
    shapes = (
        (case.batch, case.channels, *case.image),
        (case.kernels, case.channels // case.groups, *case.kernel),
        (case.batch, count, *case.positions),
    )
    return [
        torch.randn(shape, generator=generator, dtype=torch.float64)
        .to(**options, memory_format=FORMATS[layout])
        .requires_grad_()
        for shape in shapes
    ]


def by_reference(input: Tensor, weight: Tensor, factors: Tensor, case: Geometry) -> Tensor:
    over = "channels" if factors.shape[1] == case.channels else "both"
    M = spread_factors(factors, over, case.taps)
    return reference.similarity_conv2d(input, weight, M, *settings(case), case.channels)


def everything(output: Tensor, leaves: list[Tensor]) -> list[Tensor]:
    gradient = torch.randn(output.shape, generator=torch.Generator().manual_seed(1)).double()
    return [output, *torch.autograd.grad(output, leaves, gradient.to(output.dtype))]


@pytest.mark.parametrize("name", FACTORED)
@pytest.mark.parametrize("over", OVER)
@pytest.mark.parametrize("layout", FORMATS)
def test_equals_the_reference(name: str, over: str, layout: str) -> None:
    case = FACTORED[name]
    ours = operands(case, over, layout)
    assert can_factor(*ours, settings(case))
    found = everything(factored_conv2d(*ours, settings(case)), ours)
    expected = everything(by_reference(*ours, case), ours)
    assert found[0].is_contiguous(memory_format=FORMATS[layout])
    for one, other in zip(found, expected, strict=True):
        same(one, other, 1e-12)


@pytest.mark.parametrize("name", FACTORED)
@pytest.mark.parametrize("over", OVER)
def test_float32_is_as_accurate_as_with_m_written_out(name: str, over: str) -> None:
    case = FACTORED[name]
    exact = operands(case, over)
    truth = everything(by_reference(*exact, case), exact)
    ours = operands(case, over, dtype=torch.float32)
    found = everything(factored_conv2d(*ours, settings(case)), ours)
    plain = everything(by_reference(*ours, case), ours)
    for name_, one, other, true in zip(NAMES, found, plain, truth, strict=True):
        error, usual = ((t.double() - true).abs().max() for t in (one, other))
        # The bound of all fast paths: twice the usual error, and four roundings of the largest.
        assert error <= 2 * usual + 4e-7 * true.abs().max(), name_


@pytest.mark.parametrize("name", ["wide groups", "rgb", "whole rows"])
@pytest.mark.parametrize("over", OVER)
@pytest.mark.parametrize("wanted", list(itertools.product([False, True], repeat=3))[1:])
def test_only_what_is_needed(name: str, over: str, wanted: tuple[bool, ...]) -> None:
    # An image whose 24 weighted numbers fill a row of the compiled path's panel.
    whole_rows = Geometry(2, 3, 5, (6, 9), (2, 4), padding=(1, 2))
    case = whole_rows if name == "whole rows" else FACTORED[name]
    ours = [t.detach().requires_grad_(w) for t, w in zip(operands(case, over), wanted, strict=True)]
    leaves = [t for t in ours if t.requires_grad]
    found = everything(factored_conv2d(*ours, settings(case)), leaves)
    for one, other in zip(found, everything(by_reference(*ours, case), leaves), strict=True):
        same(one, other, 1e-12)


@pytest.mark.parametrize("over", OVER)
@pytest.mark.parametrize("layout", ["nchw", "nhwc", "sliced", "expanded", "one column"])
def test_factors_of_any_layout(over: str, layout: str) -> None:
    """One column that is channels-last has a stride of 1 there too, as after ``unsqueeze(-1)``."""
    column = Geometry(2, 4, 6, (7, 3), (3, 3))
    case = column if layout == "one column" else FACTORED["padded"]
    input, weight, factors = (t.detach() for t in operands(case, over, "nchw"))
    if layout == "nhwc":
        factors = factors.contiguous(memory_format=torch.channels_last)
    elif layout == "sliced":
        factors = torch.stack([factors, -factors], -1)[..., 0]
    elif layout == "expanded":
        factors = factors[:1, :, :1].expand_as(factors)
    elif layout == "one column":
        factors = factors[..., 0].mT.contiguous().mT.unsqueeze(-1)
        assert factors.stride()[1::2] == (1, 1)
    ours = [input, weight, factors.requires_grad_()]
    found = everything(factored_conv2d(*ours, settings(case)), ours[2:])
    for one, other in zip(found, everything(by_reference(*ours, case), ours[2:]), strict=True):
        same(one, other, 1e-12)


@pytest.mark.parametrize("over", OVER)
def test_second_derivatives(over: str) -> None:
    case = FACTORED["strided"]
    function = partial(factored_conv2d, settings=settings(case))
    assert torch.autograd.gradcheck(function, operands(case, over), fast_mode=True)
    assert torch.autograd.gradgradcheck(function, operands(case, over), fast_mode=True)


@pytest.mark.parametrize("over", OVER)
@pytest.mark.parametrize("what", range(3), ids=NAMES[1:])
def test_nan_appears_where_the_reference_has_it(over: str, what: int) -> None:
    case = FACTORED["padded"]
    ours = [t.detach() for t in operands(case, over)]
    ours[what][0, -1, 1, 2] = torch.nan if what else torch.inf
    found, expected = factored_conv2d(*ours, settings(case)), by_reference(*ours, case)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12, equal_nan=True)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_any_number_of_threads(threads: int) -> None:
    case = FACTORED["tall"]  # two images: with five threads, bands of rows
    ours = operands(case, "both")
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        found = everything(factored_conv2d(*ours, settings(case)), ours)
    finally:
        torch.set_num_threads(before)
    for one, other in zip(found, everything(by_reference(*ours, case), ours), strict=True):
        same(one, other, 1e-12)


@pytest.mark.parametrize(
    "change", ["one image", "one position", "too many", "float16", "depthwise", "autocast"]
)
def test_what_it_does_not_take(change: str) -> None:
    case = CASES["depthwise, one output" if change == "depthwise" else "padded"]
    input, weight, factors = operands(case, "both")
    if change == "one image":
        factors = factors[:1]
    elif change == "one position":
        factors = factors[..., :1, :1]
    elif change == "too many":
        factors = torch.cat([factors, factors[:, :1]], 1)
    elif change == "float16":
        input, weight, factors = input.half(), weight.half(), factors.half()
    with torch.autocast("cpu", enabled=change == "autocast"):
        assert not can_factor(input, weight, factors, settings(case))


def layer(over: str, **options: Any) -> ns.nn.DynamicConv2d:
    torch.manual_seed(0)
    predictor = ns.PixelPredictor(hidden=4, gate="tanh", start="random")
    conv = ns.nn.DynamicConv2d(6, 5, (3, 2), padding=1, over=over, predictor=predictor, **options)
    return conv.double()


@pytest.mark.parametrize("over", OVER)
@pytest.mark.parametrize("change", ["none", "hook", "groups", "kept", "panels"])
def test_a_layer_keeps_the_factors_unless_somebody_needs_m(
    over: str, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    conv = layer(over, similarity_groups=3 if change == "groups" else None)
    input = torch.randn(2, 6, 7, 9, dtype=torch.float64, requires_grad=True)
    leaves = [input, *conv.parameters()]
    M = conv.similarity(input)
    expected = everything(written_out(conv, input, M), leaves)
    factored = Mock(side_effect=factored_conv2d)
    monkeypatch.setattr("neural_similarity.nn.dynamic.weighted.factored_conv2d", factored)
    seen: list[Tensor] = []
    if change == "hook":
        conv.predictor.register_forward_hook(lambda *args: seen.append(args[-1]))
    conv.predictor.keeps = change == "kept"
    with dispatch.only("panels" if change == "panels" else "compiled"):
        found = everything(conv(input), leaves)
    assert factored.call_count == (change == "none")
    if change == "kept":
        assert conv.predictor.kept is not None
        seen.append(conv.predictor.kept)
    assert [m.shape for m in seen] == [M.shape] * (change in ("hook", "kept"))
    for one, other in zip(found, expected, strict=True):
        same(one, other, 1e-12)


def written_out(conv: ns.nn.DynamicConv2d, input: Tensor, M: Tensor) -> Tensor:
    groups = conv.predictor.diagonals
    window = (conv.stride, conv.padding, conv.dilation)
    output = reference.similarity_conv2d(input, conv.weight, M, *window, conv.groups, groups)
    return output + conv.bias[:, None, None]


def test_a_sequence(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    factored = Mock(side_effect=factored_conv2d)
    monkeypatch.setattr("neural_similarity.nn.dynamic.weighted.factored_conv2d", factored)
    predictor = ns.PixelPredictor(hidden=4, start="random")
    conv = ns.nn.DynamicConv1d(4, 5, 3, padding=1, over="both", predictor=predictor).double()
    input = torch.randn(2, 4, 9, dtype=torch.float64)
    leaves = list(conv.parameters())
    found = everything(conv(input), leaves)
    factored.assert_called_once()
    with dispatch.only("panels"):
        expected = everything(conv(input), leaves)
    factored.assert_called_once()
    for one, other in zip(found, expected, strict=True):
        same(one, other, 1e-12)


class OfImage(nn.Module):
    """One prediction per image, or one for the whole batch."""

    def __init__(self, outputs: int, of_batch: bool) -> None:
        super().__init__()
        self.layer, self.of_batch = nn.Linear(6, outputs), of_batch

    def forward(self, input: Tensor, window: Any) -> Tensor:
        predicted = self.layer(input.mean((2, 3)))
        return (predicted[:1] if self.of_batch else predicted)[..., None, None]


@pytest.mark.parametrize("over", OVER)
@pytest.mark.parametrize("of_batch", [False, True])
def test_a_prediction_that_is_not_for_positions_is_spread(over: str, of_batch: bool) -> None:
    torch.manual_seed(0)
    network = OfImage(6 + (6 if over == "both" else 0), of_batch)
    conv = ns.nn.DynamicConv2d(6, 5, (3, 2), padding=1, over=over, predictor=network).double()
    input = torch.randn(2, 6, 7, 9, dtype=torch.float64)
    same(conv(input), written_out(conv, input, conv.similarity(input)), 1e-12)


def test_a_compiled_prediction_is_called() -> None:
    conv = layer("channels")
    conv.predictor._compiled_call_impl = Mock(side_effect=conv.predictor.forward)
    conv(torch.randn(2, 6, 7, 9, dtype=torch.float64))
    conv.predictor._compiled_call_impl.assert_called_once()


def test_a_bias_of_another_size_is_refused() -> None:
    conv = layer("both")
    conv.bias = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    with pytest.raises(ShapeError, match="bias"):
        conv(torch.randn(2, 6, 7, 9, dtype=torch.float64))


def test_the_definition_is_the_reference() -> None:
    case = FACTORED["grouped"]
    ours = operands(case, "both")
    same(written_out_conv2d(*ours, settings(case)), by_reference(*ours, case), 1e-12)
