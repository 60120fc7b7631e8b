"""Layers of global similarity: their start, the rest of PyTorch, and what does not fit."""

import copy
import warnings

import pytest
import torch
import torch.nn.functional as F
from support.cases import relative_difference
from torch import nn

import neural_similarity as ns
from neural_similarity.nn import GlobalSimilarityConv2d
from neural_similarity.ops import global_similarity_conv2d, mix_positions
from neural_similarity.ops.global_similarity import reference

DOUBLE = {"dtype": torch.float64}


LAYERS = {
    "mask": {"structure": "diagonal", "size": (5, 7)},
    "matrix": {"structure": "unconstrained", "size": (5, 7)},
    "rotation": {"structure": ns.structures.Orthogonal(), "size": (5, 7)},
    "predicted mask": {"structure": "diagonal", "predictor": ns.SpherePredictor(hidden=4)},
    "plain CNN": {"structure": "diagonal", "predictor": ns.ConvPredictor(hidden=4)},
    "attention": {"structure": "attention"},
    "plain attention": {"structure": "plain_attention"},
}


IDENTITY = [name for name in LAYERS if name != "plain attention"]


def layer(name, disturbed=True, **kwargs):
    conv = GlobalSimilarityConv2d(8, 6, (3, 5), **LAYERS[name], **kwargs)
    if disturbed:
        with torch.no_grad():
            for parameter in conv.similarity.parameters():
                parameter.add_(0.3 * torch.randn_like(parameter))
    return conv


@pytest.mark.parametrize("name", IDENTITY)
def test_layers_start_as_the_plain_convolution_and_leave_it(name):
    plain = nn.Conv2d(8, 6, (3, 5), padding=(1, 2))
    ours, input = layer(name, disturbed=False), torch.randn(2, 8, 5, 7)
    ours.load_state_dict(plain.state_dict())
    torch.testing.assert_close(ours(input), plain(input))
    torch.testing.assert_close(ours(input[0]), plain(input[0]))
    moved = layer(name)
    moved.load_state_dict(plain.state_dict())
    assert relative_difference(moved(input), plain(input)) > 1e-3
    for parameter in moved.similarity.parameters():
        parameter.grad = None
    moved(input).square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in moved.parameters())


def test_plain_attention_cannot_start_there():
    plain, input = nn.Conv2d(8, 6, (3, 5), padding=(1, 2)), torch.randn(2, 8, 5, 7)
    ours = layer("plain attention")
    ours.load_state_dict(plain.state_dict())
    # Quadratic in the input, by definition: M_G X grows with its cube.
    ours.bias = None
    torch.testing.assert_close(ours(2 * input), 8 * ours(input))


@pytest.mark.parametrize("name", [name for name in LAYERS if name != "attention"])
def test_layers_equal_the_reference(name):
    """Attention with its value and gain is held against an explicit computation above."""
    conv, input = layer(name, **DOUBLE).eval(), torch.randn(2, 8, 5, 7, **DOUBLE)
    M = conv.similarity.similarity(input)
    truth = reference.global_similarity_conv2d(input, conv.weight, M, (1, 1), 1)
    torch.testing.assert_close(conv(input), truth + conv.bias[:, None, None])


def test_every_structure_has_a_global_form():
    input = torch.randn(2, 3, 3, 5)
    for name in ns.structures.list_structures():
        conv = GlobalSimilarityConv2d(3, 4, 3, structure=name, size=(3, 5))
        M = conv.similarity.similarity(input)
        torch.testing.assert_close(
            conv(input), global_similarity_conv2d(input, conv.weight, M, conv.bias)
        )


def test_padding_modes_and_groups():
    plain = nn.Conv2d(8, 4, 3, padding=1, padding_mode="circular", groups=2, bias=False)
    ours = GlobalSimilarityConv2d(
        8, 4, 3, padding_mode="circular", groups=2, bias=False, structure="diagonal", size=(5, 7)
    )
    ours.load_state_dict(plain.state_dict())
    input, mask = torch.randn(2, 8, 5, 7), torch.rand(5, 7)
    with torch.no_grad():
        ours.similarity.numbers["diagonal"].copy_(mask.flatten())
    torch.testing.assert_close(ours(input), plain(input * mask))


def test_a_mask_is_resized_and_says_so_once():
    conv, mask = layer("mask"), torch.rand(5, 7)
    with torch.no_grad():
        conv.similarity.numbers["diagonal"].copy_(mask.flatten())
    input = torch.randn(2, 8, 9, 4)
    with pytest.warns(ns.ResizedMaskWarning, match=r"map of \(5, 7\), got \(9, 4\).*bilinearly"):
        ours = conv(input)
    resized = F.interpolate(mask[None, None], (9, 4), mode="bilinear")
    truth = F.conv2d(input * resized, conv.weight, conv.bias, padding=(1, 2))
    torch.testing.assert_close(ours, truth)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        conv(input)
        conv(torch.randn(2, 8, 3, 3))
        conv(torch.randn(2, 8, 5, 7))


def test_similarities_count_are_trained_alone_and_survive_a_round_trip():
    model = nn.Sequential(layer("attention"), nn.Flatten(), nn.Linear(6, 2))
    numbers = {id(p) for p in ns.similarity_parameters(model)}
    assert numbers == {id(p) for p in model[0].similarity.parameters()}
    ns.freeze_backbone(model, also_train=[])
    assert not model[0].weight.requires_grad
    assert model[0].similarity.gain.requires_grad
    summary = ns.trainable_summary(model)
    assert summary.deployed == summary.total  # nothing of it merges
    copied = copy.deepcopy(model[0])
    nn.init.zeros_(copied.similarity.gain)
    copied.load_state_dict(model[0].state_dict())
    assert torch.equal(copied.similarity.gain, model[0].similarity.gain)
    with pytest.raises(ns.AttachError, match=r"global similarity '0.similarity'.*state_dict"):
        ns.save_similarity(model, "never-written.safetensors")


@pytest.mark.parametrize("name", LAYERS)
def test_compile_with_gradients(name):
    conv, input = layer(name).eval(), torch.randn(2, 8, 5, 7)
    expected = conv(input)
    expected.square().mean().backward()
    gradients = {n: p.grad.clone() for n, p in conv.named_parameters()}
    conv.zero_grad()
    result = torch.compile(conv, fullgraph=True, backend="aot_eager")(input)
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4)
    result.square().mean().backward()
    for which, parameter in conv.named_parameters():
        torch.testing.assert_close(
            parameter.grad, gradients[which], rtol=1e-3, atol=1e-3,
            msg=lambda m, w=which: f"{w}: {m}",
        )  # fmt: skip


@pytest.mark.parametrize("name", LAYERS)
def test_export(name):
    conv, input = layer(name).eval(), torch.randn(2, 8, 5, 7)
    program = torch.export.export(conv, (input,))
    torch.testing.assert_close(program.module()(input), conv(input), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["predicted mask", "attention", "plain attention"])
def test_export_for_maps_of_any_size(name):
    conv, input = layer(name).eval(), torch.randn(2, 8, 5, 7)
    sizes = {0: torch.export.Dim("N"), 2: torch.export.Dim("H"), 3: torch.export.Dim("W")}
    program = torch.export.export(conv, (input,), dynamic_shapes=(sizes,))
    for shape in ((3, 8, 4, 6), (2, 8, 9, 5)):
        other = torch.randn(shape)
        torch.testing.assert_close(program.module()(other), conv(other), rtol=1e-4, atol=1e-4)


def test_a_resized_mask_compiles_without_a_word():
    conv, input = layer("mask").eval(), torch.randn(2, 8, 6, 4)
    result = torch.compile(conv, fullgraph=True, backend="aot_eager")(input)
    with pytest.warns(ns.ResizedMaskWarning):
        torch.testing.assert_close(result, conv(input))


@pytest.mark.parametrize("name", LAYERS)
def test_autocast_and_half_precision(name):
    conv, input = layer(name).eval(), torch.randn(2, 8, 5, 7)
    truth = conv(input)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = conv(input)
    assert relative_difference(rounded.float(), truth) < 0.05
    rounded.float().square().sum().backward()
    assert all(p.grad.isfinite().all() for p in conv.parameters())
    if name != "rotation":  # PyTorch has no matrix exponential in half precision
        half = copy.deepcopy(conv).bfloat16()
        assert relative_difference(half(input.bfloat16()).float(), truth) < 0.05


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((4, 4, 2), {}, r"odd sides, got \(2, 2\).*even side has none"),
        ((4, 4, (3, 4)), {}, r"odd sides, got \(3, 4\)"),
        ((4, 4, 3, 2), {}, r"stride \(1, 1\), got \(2, 2\).*pooling"),
        ((4, 4, 3), {"padding": 0}, r"padding \(1, 1\), got \(0, 0\).*Leave padding out"),
        ((4, 4, 3), {"padding": "valid"}, "padding to be one of 'same', got 'valid'"),
        ((4, 4, 3), {"structure": "atention"}, "'atention'. Did you mean 'attention'"),
        ((4, 4, 3), {"structure": "diagonal"}, r"size=\(H, W\).*or a predictor"),
        ((4, 4, 3), {"structure": "psd"}, r"expected size=\(H, W\) for structure 'psd', got None"),
        ((4, 4, 3), {"structure": "diagonal", "size": (0, 3)}, r"at least \(1, 1\), got \(0, 3\)"),
        ((4, 4, 3), {"size": 8}, "no size for structure 'attention', got 8"),
        ((4, 4, 3), {"structure": "plain_attention", "width": 2}, "no width for structure"),
        ((4, 4, 3), {"width": 2.5}, "whole width of at least 1 for query and key, got 2.5"),
        ((4, 4, 3), {"width": 0}, "whole width of at least 1 for query and key, got 0"),
        (
            (4, 4, 3),
            {"structure": "unconstrained", "predictor": ns.SpherePredictor()},
            "predictor with structure 'diagonal' and no size, got structure 'unconstrained'",
        ),
        (
            (4, 4, 3),
            {"structure": "unconstrained", "size": (100, 80)},
            "at most 16,777,216 parameters, got up to 64,000,000.*square of the number of",
        ),
    ],
)
def test_settings_that_do_not_fit(arguments, options, message):
    with pytest.raises(ValueError, match=f"GlobalSimilarityConv2d: .*{message}"):
        GlobalSimilarityConv2d(*arguments, **options)


def test_inputs_that_do_not_fit():
    matrix = layer("matrix")
    with pytest.raises(ns.ShapeError, match=r"5 x 7 positions, got 6 x 7.*fits one size only"):
        matrix(torch.zeros(1, 8, 6, 7))
    with pytest.raises(ns.ShapeError, match=r"shape \(N, 8, H, W\).*got \(1, 3, 5, 7\)"):
        matrix(torch.zeros(1, 3, 5, 7))
    input, weight = torch.zeros(2, 3, 4, 5), torch.zeros(2, 3, 3, 3)
    for M in (torch.zeros(5, 4), torch.zeros(20), torch.zeros(3, 4, 5), torch.zeros(20, 19)):
        with pytest.raises(ns.ShapeError, match=r"\(4, 5\), \(20, 20\), .*4 x 5 positions"):
            global_similarity_conv2d(input, weight, M)
    with pytest.raises(ns.ShapeError, match=r"odd sides, got \(2, 3\)"):
        global_similarity_conv2d(input, weight[:, :, 1:], torch.zeros(4, 5))
    with pytest.raises(ns.ShapeError, match="expected input with 3 channels, got 2"):
        global_similarity_conv2d(input[:, 1:], weight, torch.zeros(4, 5))
    with pytest.raises(ns.ShapeError, match=r"weight of shape \(O, C/G, kh, kw\), got \(3,\)"):
        global_similarity_conv2d(input, torch.zeros(3), torch.zeros(4, 5))
    with pytest.raises(ns.ShapeError, match=r"mix_positions: expected input of shape"):
        mix_positions(torch.zeros(4, 5), torch.zeros(4, 5))


def test_before_a_dilated_convolution():
    mask, x = torch.rand(7, 6), torch.randn(2, 3, 7, 6)
    layer = GlobalSimilarityConv2d(3, 4, (3, 5), dilation=(2, 1), structure="diagonal", size=(7, 6))
    with torch.no_grad():
        layer.similarity.numbers["diagonal"].copy_(mask.flatten())
    truth = F.conv2d(x * mask, layer.weight, layer.bias, padding=(2, 2), dilation=(2, 1))
    torch.testing.assert_close(layer(x), truth)


@pytest.mark.parametrize("structure", ["dilated", "kernel_shape"])
def test_masks_that_would_lose_their_form_are_not_resized(structure):
    layer = ns.nn.GlobalSimilarityConv2d(1, 1, 1, structure=structure, size=(3, 3))
    layer(torch.zeros(1, 1, 3, 3))
    with pytest.raises(ns.ShapeError, match="expected a map of 3 x 3 positions, got 5 x 5"):
        layer(torch.zeros(1, 1, 5, 5))
