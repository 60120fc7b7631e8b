"""Each published layer against its definition in Python loops, and as the operation with its M."""

import pytest
import torch
import torch.nn.functional as F
from support.family_cases import CASES, build
from torch import nn
from torch.autograd import gradcheck

from neural_similarity.nn.family import (
    BilateralFilter2d,
    Involution2d,
    LocalAttention2d,
    ModulatedConv2d,
    PixelAdaptiveConv2d,
    SpatialAttentionConv2d,
    SpatialTransformer2d,
    SqueezeExciteConv2d,
)
from neural_similarity.ops import mix_positions, similarity_conv2d


@pytest.mark.parametrize("name", CASES)
def test_equals_the_definition(name):
    layer, inputs = build(name)
    with torch.no_grad():
        ours, truth = layer(*inputs), CASES[name].definition(layer, *inputs)
    torch.testing.assert_close(ours, truth, rtol=1e-11, atol=1e-11)
    single = layer(*(input[0] for input in inputs))
    torch.testing.assert_close(single, ours[0], rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("name", CASES)
def test_derivatives(name):
    """In the inputs and in all parameters."""
    layer, inputs = build(name)
    inputs = tuple(input.requires_grad_() for input in inputs)
    names, parameters = [name for name, _ in layer.named_parameters()], layer.parameters()

    def f(*operands):
        replaced = dict(zip(names, operands[len(inputs) :], strict=True))
        return torch.func.functional_call(layer, replaced, operands[: len(inputs)])

    assert gradcheck(f, (*inputs, *parameters), fast_mode=True)


@pytest.mark.parametrize("name", CASES)
def test_is_the_operation_with_its_similarity(name):
    """``Wᵀ M X``, with the M that the layer says it has."""
    layer, inputs = build(name)
    input, guide = inputs[0], inputs[-1]
    M = layer.similarity(guide)
    if isinstance(layer, SpatialTransformer2d):
        torch.testing.assert_close(layer(input), mix_positions(input, M))
        return
    if isinstance(layer, nn.Conv2d):
        weight, bias, groups = layer.weight, layer.bias, layer.groups
        settings = layer.stride, layer.padding, layer.dilation
        per_channel = isinstance(layer, (SqueezeExciteConv2d, SpatialAttentionConv2d))
        parts = layer.in_channels if per_channel else getattr(layer, "deform_groups", 1)
    else:
        if isinstance(layer, LocalAttention2d):
            input, parts = layer.value(input), layer.heads
        else:
            parts = getattr(layer, "groups", 1)
        groups, bias, settings = input.shape[1], None, layer.windows[1:]
        weight = torch.ones(groups, 1, *layer.windows.kernel_size, dtype=input.dtype)
    ours = similarity_conv2d(input, weight, M, bias, *settings, groups, parts)
    torch.testing.assert_close(layer(*inputs), ours)


def test_attention_sums_to_one_over_the_window():
    layer, (input,) = build("attention, dilated")
    sums = layer.similarity(input).unflatten(1, (layer.heads, -1)).sum(2)
    torch.testing.assert_close(sums, torch.ones_like(sums))


def test_a_constant_guide_leaves_the_plain_convolution():
    layer = PixelAdaptiveConv2d(3, 4, 3, padding=1)
    image = torch.randn(2, 3, 6, 7)
    plain = nn.Conv2d.forward(layer, image)
    torch.testing.assert_close(layer(image, torch.ones(1, 2, 6, 7)), plain)


@pytest.mark.parametrize("mode", ["reflect", "circular", "replicate"])
def test_padding_modes(mode):
    options = {"padding": (1, 2), "padding_mode": mode}
    image = torch.randn(2, 4, 6, 7)
    around = F.pad(image, (2, 2, 1, 1), mode=mode)
    for layer in (
        ModulatedConv2d(4, 3, (3, 5), **options),
        SpatialAttentionConv2d(4, 3, (3, 5), **options).eval(),
    ):
        plain = F.conv2d(around, layer.weight, layer.bias)
        if isinstance(layer, SpatialAttentionConv2d):
            M = layer.similarity(image)
            plain = similarity_conv2d(around, layer.weight, M, similarity_groups=4)
        else:
            plain = (plain - layer.bias[:, None, None]) / 2 + layer.bias[:, None, None]
        torch.testing.assert_close(layer(image), plain)
    adaptive = PixelAdaptiveConv2d(4, 3, (3, 5), **options, normalize_kernel=True)
    inner = PixelAdaptiveConv2d(4, 3, (3, 5), normalize_kernel=True)
    inner.load_state_dict(adaptive.state_dict())
    torch.testing.assert_close(adaptive(image, image), inner(around, around))


def test_windows_in_the_padding_alone_are_zero():
    layer = PixelAdaptiveConv2d(2, 3, 3, padding=4, bias=False, normalize_kernel=True)
    image = torch.randn(1, 2, 5, 5)
    output = layer(image, image)
    assert output.isfinite().all()
    assert output[..., 0, 0].abs().max() == 0


def test_how_they_start():
    image = torch.randn(3, 4, 6, 7)
    assert (ModulatedConv2d(4, 3, 3, deform_groups=2).similarity(image) == 0.5).all()
    attention = SpatialAttentionConv2d(4, 3, 3)
    attention.temperature = 1e9  # as flat as it can be
    torch.testing.assert_close(attention.similarity(image), torch.full((3, 36, 1, 1), 0.25))
    constant = torch.full((1, 2, 6, 7), 3.0)
    torch.testing.assert_close(BilateralFilter2d(5, 2.0, 0.1)(constant), constant)
    assert Involution2d(32).windows.padding == (3, 3)
    assert LocalAttention2d(8, 16).windows.padding == (3, 3)
