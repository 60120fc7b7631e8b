"""One diagonal for each kernel: a dynamic filter network (Section 6), against its equation."""

import copy

import pytest
import torch
from support.cases import SMALL, disturb
from support.span_cases import SOURCES

import neural_similarity as ns


def by_the_equation(conv, input, M):
    """y[n,o,p,q] = b[o] + Σ_c Σ_a Σ_b W[o,c,a,b] · M[n,o,c,(a,b),p,q] · X[n,c,p+a,q+b]."""
    O, C, kh, kw = conv.weight.shape
    (down, across), (da, db) = conv.stride, conv.dilation
    padded = torch.nn.functional.pad(input, (*(conv.padding[1],) * 2, *(conv.padding[0],) * 2))
    P = (padded.shape[2] - da * (kh - 1) - 1) // down + 1
    Q = (padded.shape[3] - db * (kw - 1) - 1) // across + 1
    M = M.expand(-1, -1, P, Q).reshape(len(input), O, C, kh, kw, P, Q)
    output = torch.zeros(len(input), O, P, Q, dtype=input.dtype)
    for n in range(len(input)):
        for o in range(O):
            first = o // (O // conv.groups) * C  # of the channels that this kernel sees
            for p in range(P):
                for q in range(Q):
                    total = conv.bias[o].clone()
                    for c in range(C):
                        for a in range(kh):
                            for b in range(kw):
                                x = padded[n, first + c, p * down + a * da, q * across + b * db]
                                total += conv.weight[o, c, a, b] * M[n, o, c, a, b, p, q] * x
                    output[n, o, p, q] = total
    return output


@torch.no_grad()
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize(
    ("sizes", "settings"),
    [
        ((3, 4, (3, 2)), {"stride": (2, 1), "padding": (2, 0), "dilation": (1, 3)}),
        ((4, 6, (2, 3)), {"stride": (1, 3), "padding": 1, "groups": 2}),
    ],
)
def test_every_output_is_the_equation(sizes, settings, source):
    conv = ns.nn.DynamicConv2d(*sizes, **settings, over="kernels", predictor=SOURCES[source])
    disturb(conv.double().eval())
    input = torch.randn(2, sizes[0], 5, 7, dtype=torch.float64)
    M = conv.similarity(input)
    assert M.std(1).min() > 0.01, "the kernels differ"
    torch.testing.assert_close(conv(input), by_the_equation(conv, input, M), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(conv(input[0]), conv(input)[0])
    assert conv(input[:0]).shape == (0, *conv(input).shape[1:])


@torch.no_grad()
@pytest.mark.parametrize("source", SOURCES)
def test_a_depthwise_layer_has_one_kernel_a_channel(source):
    settings = {"groups": 4, "padding": 1, "stride": 2, "predictor": SOURCES[source]}
    conv = ns.nn.DynamicConv2d(4, 4, (3, 2), over="kernels", **settings).double().eval()
    disturb(conv)
    channels = ns.nn.DynamicConv2d(4, 4, (3, 2), similarity_groups=4, **settings).double().eval()
    channels.load_state_dict(conv.state_dict())
    input = torch.randn(2, 4, 7, 6, dtype=torch.float64)
    assert torch.equal(conv.similarity(input), channels.similarity(input))
    torch.testing.assert_close(conv(input), channels(input), rtol=1e-12, atol=1e-12)


@torch.no_grad()
@pytest.mark.parametrize("source", SOURCES)
def test_one_group_is_the_scope_kernel(source):
    """One M for each kernel, which all of its channels share, as a static M has it."""
    conv = ns.nn.DynamicConv2d(
        4, 6, 3, groups=2, over="kernels", similarity_groups=1, predictor=SOURCES[source]
    )
    disturb(conv.double().eval())
    input = torch.randn(1, 4, 3, 3, dtype=torch.float64)  # one position
    M = conv.similarity(input).reshape(6, 9)
    kernels = ns.ops.effective_weight(conv.weight, M, scope="kernel", groups=2)
    expected = torch.nn.functional.conv2d(input, kernels, conv.bias, groups=2)
    torch.testing.assert_close(conv(input), expected, rtol=1e-12, atol=1e-12)


def test_groups_divide_the_channels_that_a_kernel_sees():
    message = "DynamicConv2d: expected similarity_groups to divide the 2 channels, got 4"
    with pytest.raises(ns.ShapeError, match=message):
        ns.nn.DynamicConv2d(4, 4, 3, groups=2, over="kernels", similarity_groups=4, predictor=SMALL)


@pytest.mark.parametrize("source", SOURCES)
def test_every_dtype_and_autocast(source):
    conv = ns.nn.DynamicConv2d(3, 4, 3, padding=1, over="kernels", predictor=SOURCES[source]).eval()
    disturb(conv)
    input = torch.randn(2, 3, 6, 5)
    expected = conv(input)
    with torch.autocast("cpu", torch.bfloat16):
        output = conv(input)
    assert output.dtype == torch.bfloat16
    torch.testing.assert_close(output.float(), expected, rtol=0.05, atol=0.1)
    double = conv.double()(input.double())
    torch.testing.assert_close(double.float(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("positions", [(1, 1), (4, 3)])
def test_predictions_that_do_not_fit_are_refused(positions):
    class Fixed(torch.nn.Module):
        def forward(self, input, window):
            return self.prediction

    conv = ns.nn.DynamicConv2d(3, 4, 3, over="kernels", predictor=Fixed())
    input = torch.randn(2, 3, 6, 5)
    conv.predictor.network.prediction = torch.zeros(2, 4 * 3 * 9, *positions, dtype=torch.float64)
    with pytest.raises(ns.ShapeError, match="with the same floating-point dtype, got"):
        conv(input)
    for wrong in ((3, 4 * 3 * 9), (2, 4 * 9)):
        conv.predictor.network.prediction = torch.zeros(*wrong, *positions)
        message = r"predictor: expected (output of shape \(N, 108, P, Q\)|108 parameters)"
        with pytest.raises(ns.ShapeError, match=message):
            conv(input)
    conv.predictor.network.prediction = torch.zeros(1, 4 * 3 * 9, *positions)  # for all images
    plain = torch.nn.functional.conv2d(input, conv.weight, conv.bias)
    torch.testing.assert_close(conv(input), plain, rtol=1e-4, atol=1e-5)


def test_many_inputs_at_once_by_vmap():
    for source in SOURCES:
        conv = ns.nn.DynamicConv2d(3, 4, 3, over="kernels", predictor=SOURCES[source]).eval()
        disturb(conv)
        inputs = torch.randn(2, 3, 3, 5, 6)
        output = torch.func.vmap(conv)(inputs)
        torch.testing.assert_close(output[1], conv(inputs[1]), rtol=1e-4, atol=1e-5)


def test_two_layers_in_either_memory_format():
    """The output of one layer can have strides with which PyTorch returns wrong gradients."""
    settings = {"padding": 1, "over": "kernels", "predictor": ns.ImagePredictor(hidden=4)}
    net = torch.nn.Sequential(
        ns.nn.DynamicConv2d(3, 6, 3, **settings), torch.nn.ReLU(),
        ns.nn.DynamicConv2d(6, 5, 3, **settings),
    ).double()  # fmt: skip
    disturb(net)
    input, gradients = torch.randn(4, 3, 7, 6, dtype=torch.float64), []
    for layout in (torch.contiguous_format, torch.channels_last):
        one = copy.deepcopy(net).to(memory_format=layout)
        one(input.contiguous(memory_format=layout)).sin().sum().backward()
        gradients.append({name: p.grad for name, p in one.named_parameters()})
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, msg=name)
