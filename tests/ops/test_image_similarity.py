"""One M per image in one step of the graph, against the same as separate operations."""

from __future__ import annotations

from unittest.mock import Mock

import pytest
import torch
from torch import Tensor, nn

import neural_similarity as ns
from neural_similarity.nn.predictors import Window
from neural_similarity.nn.predictors.image import ImageLayers
from neural_similarity.ops.image_similarity import (
    ImageSettings,
    fused_image_similarity,
    image_similarity,
)
from neural_similarity.ops.similarity_conv import compiled, dispatch

pytestmark = pytest.mark.skipif(compiled.load() is None, reason="no compiler")

TAPS, GROUPS, HIDDEN = 6, 4, 3
OUTPUTS = {"taps": GROUPS * TAPS, "channels": GROUPS, "both": TAPS + GROUPS}
NAMES = ("input", "first weight", "first bias", "last weight", "last bias")


def operands(over: str) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = (5, 8, 2, 3), (HIDDEN, 8), (HIDDEN,), (OUTPUTS[over], HIDDEN), (OUTPUTS[over],)
    return [
        torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()
        for shape in shapes
    ]


@pytest.mark.parametrize("over", OUTPUTS)
@pytest.mark.parametrize(
    ("gate", "residual"), [("none", False), ("none", True), ("tanh", True), ("sigmoid", True)]
)
def test_equals_the_single_operations(over: str, gate: str, residual: bool) -> None:
    settings = ImageSettings(gate, residual, over, TAPS)
    ours = operands(over)
    fused, single = fused_image_similarity(*ours, settings), image_similarity(*ours, settings)
    torch.testing.assert_close(fused, single, rtol=1e-12, atol=1e-12)
    gradient = torch.randn(fused.shape, generator=torch.Generator().manual_seed(1)).double()
    pairs = zip(
        NAMES,
        torch.autograd.grad(fused, ours, gradient),
        torch.autograd.grad(single, ours, gradient),
        strict=True,
    )
    for name, one, other in pairs:
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12, msg=name)
    assert torch.autograd.gradgradcheck(
        lambda *tensors: fused_image_similarity(*tensors, settings), ours, fast_mode=True
    )


@pytest.mark.parametrize("wanted", range(len(NAMES)), ids=NAMES)
def test_only_what_is_needed(wanted: int) -> None:
    settings = ImageSettings("tanh", True, "both", TAPS)
    ours = [t.detach().requires_grad_(i == wanted) for i, t in enumerate(operands("both"))]
    found, expected = (
        torch.autograd.grad(function(*ours, settings).square().sum(), ours[wanted])[0]
        for function in (fused_image_similarity, image_similarity)
    )
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("over", OUTPUTS)
def test_a_layer_uses_it_unless_it_has_hooks(over: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    fused = Mock(side_effect=fused_image_similarity)
    monkeypatch.setattr("neural_similarity.nn.predictors.image.fused_image_similarity", fused)
    predictor = ns.ImagePredictor(hidden=HIDDEN, start="random")
    conv = ns.nn.DynamicConv2d(4, 5, (2, 3), padding=1, over=over, predictor=predictor).double()
    network = conv.predictor.network
    calls: list[nn.Module] = []

    def run() -> list[Tensor]:
        input = torch.randn(3, 4, 7, 6, generator=torch.Generator().manual_seed(1))
        leaves = [input.double().requires_grad_(), *conv.parameters()]
        output = conv(leaves[0])
        return [output, *torch.autograd.grad(output.square().sum(), leaves)]

    alone = run()
    fused.assert_called_once()
    hook = network.last.register_forward_hook(lambda module, *others: calls.append(module))
    watched = run()
    hook.remove()
    assert calls == [network.last]
    fused.assert_called_once()
    for one, other in zip(alone, watched, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_operands_of_any_layout() -> None:
    settings = ImageSettings("tanh", True, "both", TAPS)
    ours = operands("both")
    apart = [torch.stack([t, -t], -1)[..., 0] for t in ours]
    ours[2] = apart[2] = ours[2][:1].expand(HIDDEN)
    expected = image_similarity(*ours, settings)
    torch.testing.assert_close(fused_image_similarity(*apart, settings), expected)


class Constant(ImageLayers):
    def forward(self, input: Tensor, window: Window) -> Tensor:
        return torch.full_like(super().forward(input, window), 5)


@pytest.mark.parametrize("change", ["subclass", "nested", "no bias"])
def test_other_networks_are_computed_step_by_step(change: str) -> None:
    predictor = ns.ImagePredictor(hidden=HIDDEN, gate="none", start="random")
    conv = ns.nn.DynamicConv2d(4, 5, 3, predictor=predictor)
    network = conv.predictor.network
    if change == "subclass":
        network.__class__ = Constant
    elif change == "nested":
        network.last = nn.Sequential(network.last)
    else:
        network.first = nn.Linear(4, HIDDEN, bias=False)
    input = torch.randn(2, 4, 6, 7)
    M = conv.similarity(input)
    with dispatch.only("panels"):
        torch.testing.assert_close(M, conv.similarity(input))
    assert change != "subclass" or bool((M == 6).all())
