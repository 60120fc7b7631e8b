"""Hyperspherical layers against the definition, patch by patch."""

import math

import pytest
import torch
import torch.nn.functional as F
from support import oracle
from support.cases import GEOMETRIES
from torch import nn
from torch.autograd import gradcheck, gradgradcheck

import neural_similarity as ns
from neural_similarity.ops import similarity_conv2d, sphere_conv2d, sphere_linear
from neural_similarity.ops.sphere import EPS, patch_norm


def by_definition(input, weight, geometry, operator, normalize, k=0.3):
    """Loops over positions and kernels; the formulas as SphereNet's authors print them."""

    def norm(v):
        return math.sqrt(float(v @ v) + EPS)

    P, Q = geometry.positions
    result = torch.empty(len(input), geometry.kernels, P, Q, dtype=input.dtype)
    seen = geometry.channels // geometry.groups
    options = (geometry.kernel, geometry.stride, geometry.padding, geometry.dilation)
    for n in range(len(input)):
        for o in range(geometry.kernels):
            first = o // (geometry.kernels // geometry.groups) * seen
            for p in range(P):
                for q in range(Q):
                    x = oracle.patch(input[n], range(first, first + seen), (p, q), *options)
                    w = weight[o].reshape(-1)
                    value = float(w @ x)
                    value /= norm(x) if normalize != "weight" else 1
                    value /= norm(w) if normalize != "input" else 1
                    if operator != "cosine":
                        theta = math.acos(value)
                    if operator == "linear":
                        value = 1 - 2 * theta / math.pi
                    elif operator == "sigmoid":
                        a, b = math.exp(-math.pi / (2 * k)), math.exp(theta / k - math.pi / (2 * k))
                        value = (1 + a) / (1 - a) * (1 - b) / (1 + b)
                    result[n, o, p, q] = value
    return result


@pytest.mark.parametrize(
    ("operator", "normalize"),
    [
        ("cosine", "input"),
        ("cosine", "weight"),
        ("cosine", "both"),
        ("linear", "both"),
        ("sigmoid", "both"),
    ],
)
@pytest.mark.parametrize("name", GEOMETRIES)
def test_equals_the_definition(name, operator, normalize):
    geometry = GEOMETRIES[name]
    input, weight = geometry.input(dtype=torch.float64), geometry.weight(dtype=torch.float64)
    ours = sphere_conv2d(input, weight, **geometry.options, operator=operator, normalize=normalize)
    truth = by_definition(input, weight, geometry, operator, normalize)
    torch.testing.assert_close(ours, truth, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("operator", ["cosine", "linear", "sigmoid"])
def test_linear_is_a_convolution_of_one_position(operator):
    input, weight, bias = torch.randn(3, 5, 6), torch.randn(4, 6), torch.randn(4)
    as_conv = sphere_conv2d(
        input.reshape(-1, 6, 1, 1), weight[..., None, None], bias, operator=operator
    )
    ours = sphere_linear(input, weight, bias, operator=operator)
    torch.testing.assert_close(ours, as_conv.reshape(3, 5, 4))


@pytest.mark.parametrize("operator", ["cosine", "linear", "sigmoid"])
def test_derivatives(operator):
    input = torch.randn(2, 3, 4, 3, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(2, 3, 3, 2, dtype=torch.float64, requires_grad=True)
    k = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)

    def f(input, weight, k):
        return sphere_conv2d(
            input, weight, stride=(1, 2), padding=(0, 1), operator=operator, sharpness=k
        )

    assert gradcheck(f, (input, weight, k))
    assert gradgradcheck(f, (input, weight, k))


def test_hyperspherical_convolution_is_a_dynamic_similarity():
    """M = I / (‖W‖ ‖X‖): for one kernel, exactly; for many, with ‖W‖ divided out beforehand."""
    geometry = GEOMETRIES["strided"]
    input, weight = geometry.input(dtype=torch.float64), geometry.weight(dtype=torch.float64)
    norm = patch_norm(input, geometry.kernel, geometry.stride, geometry.padding, geometry.dilation)
    for o in range(geometry.kernels):
        one = weight[o : o + 1]
        M = (1 / ((one.square().sum() + EPS).sqrt() * norm)).expand(-1, geometry.taps, -1, -1)
        torch.testing.assert_close(
            similarity_conv2d(input, one, M, **geometry.options),
            sphere_conv2d(input, one, **geometry.options),
        )


def test_layers():
    conv = ns.nn.SphereConv2d(3, 4, (3, 5), 2, padding=(1, 2), padding_mode="reflect")
    assert conv.bias is None
    input = torch.randn(2, 3, 9, 8)
    padded = F.pad(input, (2, 2, 1, 1), mode="reflect")
    torch.testing.assert_close(conv(input), sphere_conv2d(padded, conv.weight, stride=2))
    torch.testing.assert_close(conv(input[0]), conv(input)[0])
    same = ns.nn.SphereConv2d(3, 4, 3, padding="same", bias=True)
    assert same(input).shape == (2, 4, 9, 8)
    scaled = ns.nn.SphereConv2d(3, 4, 3, normalize="input")
    torch.testing.assert_close(scaled(100 * input), scaled(1e4 * input), rtol=1e-3, atol=1e-4)
    assert "operator=cosine" in repr(conv)


def test_the_learnable_sigmoid_learns_and_stays_a_sigmoid():
    layer = ns.nn.SphereLinear(6, 3, operator="learnable_sigmoid")
    assert isinstance(layer.sharpness, nn.Parameter)
    layer(torch.randn(8, 6)).square().sum().backward()
    assert layer.sharpness.grad.abs() > 0
    with torch.no_grad():
        layer.sharpness.fill_(-1.0)
    assert layer(torch.randn(8, 6)).isfinite().all()


def test_an_empty_patch_gives_zero_and_finite_gradients():
    input = torch.zeros(1, 2, 4, 4, requires_grad=True)
    output = sphere_conv2d(input, torch.randn(3, 2, 3, 3))
    assert (output == 0).all()
    output.sum().backward()
    assert input.grad.isfinite().all()


def test_bad_choices():
    with pytest.raises(ns.UnknownNameError, match="'cosine', 'linear', 'sigmoid', got 'cos'"):
        sphere_conv2d(torch.zeros(1, 1, 3, 3), torch.zeros(1, 1, 3, 3), operator="cos")
    with pytest.raises(ns.ShapeError, match="An angle needs both lengths"):
        sphere_linear(torch.zeros(1, 3), torch.zeros(1, 3), operator="linear", normalize="input")
    with pytest.raises(ns.ShapeError, match="SphereLinear: expected normalize='both'"):
        ns.nn.SphereLinear(3, 3, operator="linear", normalize="input")
    with pytest.raises(ns.UnknownNameError, match=r"SphereConv2d: .*'learnable_sigmoid'"):
        ns.nn.SphereConv2d(3, 3, 3, operator="tanh")


@pytest.mark.parametrize("value", [0, -1e-3, float("nan"), "a"])
def test_a_sharpness_that_cannot_be(value):
    with pytest.raises(ns.ShapeError, match="SphereConv2d: expected sharpness to be a number"):
        ns.nn.SphereConv2d(3, 4, 3, operator="sigmoid", sharpness=value)
    with pytest.raises(ns.ShapeError, match="sphere_linear: expected sharpness to be a number"):
        sphere_linear(torch.ones(2, 3), torch.ones(4, 3), operator="sigmoid", sharpness=value)


@pytest.mark.parametrize("bias", [True, False])
def test_a_bias_does_not_widen_the_output(bias):
    conv, linear = ns.nn.SphereConv2d(4, 4, 3, bias=bias), ns.nn.SphereLinear(6, 3, bias=bias)
    with torch.autocast("cpu", torch.bfloat16):
        assert conv(torch.randn(2, 4, 6, 6)).dtype == linear(torch.randn(2, 6)).dtype
        assert conv(torch.randn(2, 4, 6, 6)).dtype == torch.bfloat16


def test_long_patches_do_not_overflow_in_half_precision():
    input, weight = 20 * torch.randn(1, 64, 6, 6), torch.randn(3, 64, 3, 3) / 24
    exact = sphere_conv2d(input, weight, normalize="input")
    half = sphere_conv2d(input.half(), weight.half(), normalize="input")
    torch.testing.assert_close(half.float(), exact, rtol=0.02, atol=0.01)
    with torch.autocast("cpu", torch.float16):
        cast = sphere_conv2d(input, weight, normalize="input")
    torch.testing.assert_close(cast.float(), exact, rtol=0.02, atol=0.01)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("operator", ["cosine", "sigmoid"])
def test_an_image_without_batch(operator, groups):
    image, weight = torch.randn(2, 6, 5), torch.randn(4, 2 // groups, 3, 2)
    options = {"stride": (2, 1), "padding": 1, "groups": groups, "operator": operator}
    ours = sphere_conv2d(image, weight, torch.randn(4), **options)
    assert ours.shape == (4, 3, 6)
    one = sphere_conv2d(image, weight, **options)
    torch.testing.assert_close(one, sphere_conv2d(image[None], weight, **options)[0])


def test_inputs_that_are_no_images():
    with pytest.raises(ns.ShapeError, match=r"sphere_conv2d: expected input of shape \(N, C, H, W"):
        ns.nn.SphereConv2d(1, 4, 3, padding=1)(torch.randn(8, 8))
    with pytest.raises(ns.ShapeError, match="expected input with 3 channels, got 2"):
        sphere_conv2d(torch.randn(2, 8, 8), torch.randn(4, 3, 3, 3))


@pytest.mark.parametrize("operator", ["linear", "sigmoid"])
def test_small_angles_keep_their_slope_in_half_precision(operator):
    """cos 0.1 is 0.995; bfloat16 goes from 0.992 to 0.996 to 1, so it is known to 2⁻⁸ at best.

    The slope of both operators is at most 7.3 there: what is left of the angle is within 0.03.
    """
    weight = torch.tensor([[1.0, 0.0]])
    vector = 4 * torch.tensor([[math.cos(0.1), math.sin(0.1)]])
    exact = sphere_linear(vector, weight, operator=operator)
    narrow = vector.bfloat16().requires_grad_()
    output = sphere_linear(narrow, weight.bfloat16(), operator=operator)
    assert output.dtype == torch.bfloat16
    torch.testing.assert_close(output.float(), exact, rtol=0, atol=0.03)
    output.sum().backward()
    assert narrow.grad.abs().max() > 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_angle_of_parallel_vectors_has_a_finite_slope(dtype):
    vector = torch.randn(1, 64).to(dtype).requires_grad_()
    sphere_linear(vector, vector.detach(), operator="linear").sum().backward()
    assert vector.grad.isfinite().all()


def test_a_sharpness_below_the_floor_can_grow_again():
    layer = ns.nn.SphereConv2d(2, 3, 3, operator="learnable_sigmoid", sharpness=0.02)
    layer.sharpness.data.fill_(0.01)
    layer(torch.randn(2, 2, 5, 5)).sum().backward()
    assert layer.sharpness.grad != 0
    with pytest.raises(ns.ShapeError, match=r"learnable sharpness of at least 0\.02, got 0\.01"):
        ns.nn.SphereConv2d(2, 3, 3, operator="learnable_sigmoid", sharpness=0.01)


@pytest.mark.parametrize("make", [
    lambda: ns.nn.SphereConv2d(3, 4, 3, operator="learnable_sigmoid", sharpness=0.4),
    lambda: ns.nn.SphereLinear(3, 4, operator="learnable_sigmoid", sharpness=0.4),
])  # fmt: skip
def test_a_learnable_sigmoid_of_the_meta_device_starts_like_any_other(make):
    with torch.device("meta"):
        layer = make()
    layer.to_empty(device="cpu")
    layer.sharpness.data.fill_(float("nan"))
    layer.reset_parameters()
    assert layer.sharpness.item() == pytest.approx(0.4)
