"""What M spans: taps, channels, both or kernels, in groups of channels, for every geometry."""

import pytest
import torch
from support import oracle
from support.cases import EVEN, GEOMETRIES, SMALL, disturb
from support.span_cases import SOURCES, SPANS
from torch import nn

import neural_similarity as ns
from neural_similarity.nn.predictors import Window

ALL = {**GEOMETRIES, **EVEN}


def options(name, channels, groups=1):
    """The arguments of a span; a divisor is more than one and, if possible, not all channels."""
    seen = channels // groups if SPANS[name].get("over") == "kernels" else channels
    divisor = next((s for s in range(2, seen + 1) if seen % s == 0), 1)
    return {k: divisor if v == "divisor" else v for k, v in SPANS[name].items()}


def layer(geometry, span, source, **kwargs):
    conv = ns.nn.DynamicConv2d(
        geometry.channels, geometry.kernels, geometry.kernel, **geometry.options,
        predictor=SOURCES[source], **options(span, geometry.channels, geometry.groups), **kwargs,
    ).double()  # fmt: skip
    disturb(conv)
    return conv.eval()


def entries(z, over, groups, taps):
    """M entry by entry: ``(N, S·K, P, Q)`` from what the network returns."""
    rows = []
    for s in range(groups):
        for i in range(taps):
            if over in ("taps", "kernels"):
                rows.append(1 + z[:, s * taps + i])
            elif over == "channels":
                rows.append(1 + z[:, s])
            else:
                rows.append((1 + z[:, i]) * (1 + z[:, taps + s]))
    return torch.stack(rows, 1)


@torch.no_grad()
@pytest.mark.parametrize("span", SPANS)
@pytest.mark.parametrize("name", ALL)
def test_every_span_is_the_definition(name, span):
    geometry = ALL[name]
    source = list(SOURCES)[(list(ALL).index(name) + list(SPANS).index(span)) % 3]
    conv = layer(geometry, span, source, bias=False)
    chosen = options(span, geometry.channels, geometry.groups)
    over, per_group = chosen.get("over", "taps"), geometry.channels // geometry.groups
    default = {"taps": 1, "kernels": per_group}.get(over, geometry.channels)
    groups = chosen.get("similarity_groups", default)
    diagonals = groups * (geometry.kernels if over == "kernels" else 1)
    input = geometry.input(dtype=torch.float64)
    z = conv.predictor.network(input, Window(conv.stride, conv.padding, conv.dilation))
    M = entries(z, over, diagonals, geometry.taps)
    assert (M - 1).abs().max() > 0.05
    torch.testing.assert_close(conv.similarity(input), M)
    if over == "kernels":
        matrix = oracle.kernel_matrix(M, per_group, geometry.kernels, groups)
    else:
        matrix = oracle.positional_matrix(M, per_group, geometry.kernels, geometry.groups, groups)
    truth = oracle.similarity_conv2d(input, conv.weight, matrix, **geometry.options)
    torch.testing.assert_close(conv(input), truth, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("span", SPANS)
def test_every_span_starts_exactly_at_the_identity(span, source):
    geometry = GEOMETRIES["grouped"]
    plain = geometry.conv().double()
    conv = ns.nn.DynamicConv2d(
        geometry.channels, geometry.kernels, geometry.kernel, **geometry.options,
        predictor=SOURCES[source], **options(span, geometry.channels, geometry.groups),
    ).double()  # fmt: skip
    conv.load_state_dict(plain.state_dict())
    input = geometry.input(dtype=torch.float64)
    assert (conv.similarity(input) == 1).all()
    torch.testing.assert_close(conv(input), plain(input))
    torch.testing.assert_close(conv(input[0]), plain(input[0]))
    disturb(conv)
    assert (conv(input) - plain(input)).abs().max() > 1e-3


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("span", ["taps in groups", "channels", "both", "kernels"])
def test_derivatives_of_a_whole_layer(span, source):
    conv = ns.nn.DynamicConv2d(
        2, 2, (3, 2), padding=1, predictor=SOURCES[source], **options(span, 2)
    )
    conv.double().eval()
    disturb(conv)
    parameters = dict(conv.named_parameters())

    def f(input, *values):
        return torch.func.functional_call(
            conv, dict(zip(parameters, values, strict=True)), (input,)
        )

    input = torch.randn(2, 2, 3, 3, dtype=torch.float64, requires_grad=True)
    tensors = (input, *(p.detach().requires_grad_() for p in parameters.values()))
    assert torch.autograd.gradcheck(f, tensors, fast_mode=True)
    assert torch.autograd.gradgradcheck(f, tensors, fast_mode=True)


@torch.no_grad()
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("span", ["taps in groups", "channels", "both", "kernels in groups"])
def test_one_dimension_is_an_image_of_one_row(span, source):
    settings = {"predictor": SOURCES[source], "groups": 2, **options(span, 4, 2)}
    line = ns.nn.DynamicConv1d(4, 6, 5, stride=2, padding=3, dilation=2, **settings)
    disturb(line)
    image = ns.nn.DynamicConv2d(
        4, 6, (1, 5), stride=(1, 2), padding=(0, 3), dilation=(1, 2), **settings
    )
    state = line.state_dict()
    image.load_state_dict({**state, "weight": state["weight"].unsqueeze(2)})
    input = torch.randn(2, 4, 13)
    expected = image.eval()(input.unsqueeze(2)).squeeze(2)
    torch.testing.assert_close(line.eval()(input), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(line(input[0]), expected[0], rtol=1e-4, atol=1e-5)


@torch.no_grad()
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel:UserWarning")
@pytest.mark.parametrize("mode", ["reflect", "circular", "same"])
@pytest.mark.parametrize("source", ["pixel", "image"])
def test_every_kind_of_padding(source, mode):
    padding = {"padding": "same"} if mode == "same" else {"padding": 1, "padding_mode": mode}
    settings = {"predictor": SOURCES[source], "over": "both"}
    conv = ns.nn.DynamicConv2d(3, 4, (4, 3), **padding, **settings).double()
    disturb(conv)
    bare = ns.nn.DynamicConv2d(3, 4, (4, 3), **settings).double()
    bare.load_state_dict(conv.state_dict())
    input = torch.randn(2, 3, 7, 8, dtype=torch.float64)
    around = (1, 1, 1, 2) if mode == "same" else (1, 1, 1, 1)
    padded = nn.functional.pad(input, around, mode="constant" if mode == "same" else mode)
    M = bare.similarity(padded)
    if source == "image":  # the average is that of the input, not of its margins
        assert not torch.allclose(conv.similarity(input), M)
        M = bare.similarity(input)
    torch.testing.assert_close(conv.similarity(input), M)
    expected = ns.ops.similarity_conv2d(padded, conv.weight, M, conv.bias, similarity_groups=3)
    torch.testing.assert_close(conv(input), expected)


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"over": "rows"}, ns.UnknownNameError, "over to be one of 'both', 'channels', 'kernels'"),
        ({"similarity_groups": 0}, ns.ShapeError, "similarity_groups to be a whole number of at"),
        ({"similarity_groups": 2.5}, ns.ShapeError, "similarity_groups to be a whole number"),
        ({"over": "channels", "structure": "psd"}, ns.ShapeError,
         r"expected structure 'diagonal' with over='channels' .* got 'psd'"),
        ({"over": "kernels", "structure": "unconstrained"}, ns.ShapeError,
         r"expected structure 'diagonal' with over='kernels' .* and kernels have their own"),
        ({"similarity_groups": 2, "structure": "unconstrained"}, ns.ShapeError,
         "similarity_groups=2, got 'unconstrained'"),
        ({"over": "both", "predictor": ns.PairPredictor()}, ns.ShapeError,
         "expected over='taps' and structure 'diagonal' with PairPredictor, got over='both'"),
    ],
)  # fmt: skip
def test_what_cannot_be_spanned_says_why(settings, error, message):
    with pytest.raises(error, match=f"DynamicSimilarity: .*{message}"):
        ns.DynamicSimilarity(**settings)
    with pytest.raises(error, match=f"DynamicConv2d: .*{message}"):
        ns.nn.DynamicConv2d(4, 4, 3, **settings)


def test_a_kernel_shape_goes_with_every_span():
    structure = ns.structures.KernelShape("diagonal")
    conv = ns.nn.DynamicConv2d(4, 5, 3, structure=structure, over="both", predictor=SMALL).eval()
    disturb(conv)
    input = torch.randn(2, 4, 7, 7)
    D = conv.predictor.kernel_shape()
    assert D.shape == (9,)
    weight = conv.weight * D.reshape(3, 3)
    M = conv.similarity(input)
    expected = ns.ops.similarity_conv2d(input, weight, M, conv.bias, similarity_groups=4)
    torch.testing.assert_close(conv(input), expected)


def test_an_image_below_the_kernel_is_refused():
    for source in SOURCES:
        conv = ns.nn.DynamicConv2d(3, 4, 3, predictor=SOURCES[source], over="channels")
        with pytest.raises(ns.ShapeError, match=r"DynamicConv2d: .*kernel is larger than"):
            conv(torch.randn(1, 3, 2, 2))
