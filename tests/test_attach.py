"""Attaching: to every layer, at the identity, by every way of naming; refusing what is wrong."""

import warnings

import oracle
import pytest
import torch
from cases import (
    GEOMETRIES,
    LAYERS,
    SCOPES,
    STARTS_AT_IDENTITY,
    STRUCTURES,
    disturb,
    layers,
    output,
)
from networks import PlainCNN, ResNet
from torch import nn
from torch.nn.utils import parametrizations, parametrize

import neural_similarity as ns
from neural_similarity.nn.inventory import layer_similarities, named_similarities


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("structure", STARTS_AT_IDENTITY)
@pytest.mark.parametrize("layer", LAYERS)
def test_attaching_changes_nothing_until_training_does(layer, structure, scope):
    module, shape = layers()[layer]
    module.eval()
    input = torch.randn(shape)
    before = output(module, input)
    ns.attach(module, ns.StaticSimilarity(STRUCTURES[structure], scope, target_modules=".*"))
    assert torch.equal(output(module, input), before)
    disturb(module)
    assert not torch.allclose(output(module, input), before)


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("name", ["strided", "grouped"])
def test_an_attached_convolution_is_the_definition(name, structure, scope):
    geometry = GEOMETRIES[name]
    conv = geometry.conv(bias=False).double()
    weight = conv.weight.detach().clone()
    ns.attach(conv, ns.StaticSimilarity(STRUCTURES[structure], scope))
    disturb(conv)
    (parametrization,) = layer_similarities(conv).values()
    input = geometry.input(dtype=torch.float64)
    truth = oracle.similarity_conv2d(
        input,
        weight,
        oracle.scoped_matrix(
            parametrization.similarity().detach(),
            scope,
            geometry.channels // geometry.groups,
            geometry.kernels,
            geometry.groups,
        ),
        **geometry.options,
    )
    torch.testing.assert_close(conv(input), truth, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("structure", "scope", "count"),
    [
        ("diagonal", "layer", 9),
        ("unconstrained", "layer", 81),
        ("symmetric", "layer", 45),
        ("psd", "layer", 45),
        ("orthogonal", "layer", 36),
        ("kernel_shape", "layer", 18),
        ("diagonal", "channel", 4 * 9),
        ("unconstrained", "kernel", 6 * 81),
        ("diagonal", "full", 2 * 9),
        ("unconstrained", "full", (2 * 9) ** 2),
    ],
)
def test_how_many_numbers_a_three_by_three_layer_learns(structure, scope, count):
    conv = ns.attach(nn.Conv2d(4, 6, 3, groups=2), ns.StaticSimilarity(structure, scope))
    assert sum(p.numel() for p in ns.similarity_parameters(conv)) == count


def attached(model):
    return [name.removesuffix(".weight") for name, _ in named_similarities(model)]


def attach(model, **options):
    return attached(ns.attach(model, ns.StaticSimilarity(**options)))


def test_naming_layers():
    assert attach(PlainCNN()) == ["features.0", "features.3", "features.6"]
    assert attach(PlainCNN(), target_modules=["0", "features.6"]) == ["features.0", "features.6"]
    assert attach(PlainCNN(), target_modules=["classifier"]) == ["classifier"]
    assert attach(PlainCNN(), target_modules=r"features\..*") == attach(PlainCNN())
    assert attach(PlainCNN(), exclude_modules=["0"]) == ["features.3", "features.6"]
    assert attach(PlainCNN(), exclude_modules=r".*\.[03]") == ["features.6"]
    # A suffix is a whole part of a name: "1" means neither "conv1" nor "layer1".
    assert attach(ResNet(), target_modules=["conv1"]) == ["layer1.conv1", "layer2.conv1"]
    with pytest.raises(ns.AttachError, match="got '1', which ends no layer's name"):
        attach(ResNet(), target_modules=["1"])


def test_one_tap_is_passed_over_with_a_word_unless_named():
    with pytest.warns(
        ns.SkippedLayerWarning, match=r"4 layer\(s\) with a 1×1 kernel \(layer1.conv1"
    ):
        names = attach(ResNet())
    assert "layer1.conv1" not in names
    assert "layer1.conv2" in names
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert attach(ResNet(), target_modules=["conv1"]) == ["layer1.conv1", "layer2.conv1"]
        assert "layer1.downsample" not in attach(ResNet(), exclude_modules=["conv1", "downsample"])
        # The full matrix mixes channels, so a single tap has much to learn.
        assert "layer1.conv1" in attach(ResNet(), scope="full")
    with pytest.raises(
        ns.AttachError, match=r"got only 1×1 kernels \(model\)|got only 1×1 kernels"
    ):
        attach(nn.Conv2d(2, 2, 1))


def test_blocks_of_features():
    linear = nn.Linear(12, 5)
    ns.attach(linear, ns.StaticSimilarity("unconstrained", block_size=4, target_modules=".*"))
    assert linear.parametrizations.weight[0].numbers["matrix"].shape == (4, 4)
    disturb(linear)
    M = linear.parametrizations.weight[0].similarity()
    W = linear.parametrizations.weight.original
    torch.testing.assert_close(linear.weight, W @ torch.block_diag(M, M, M))

    lstm = nn.LSTM(6, 9)
    ns.attach(lstm, ns.StaticSimilarity("diagonal", block_size=3, target_modules=".*"))
    assert [p.shape for p in ns.similarity_parameters(lstm)] == [(3,), (3,)]
    with pytest.raises(
        ns.AttachError, match="model: expected block_size to divide the 12 input features, got 5"
    ):
        attach(nn.Linear(12, 5), block_size=5, target_modules=".*")


def state(model):
    return {name: (type(m), tuple(m._parameters)) for name, m in model.named_modules()}


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (
            nn.Sequential(nn.Linear(3, 3)),
            {},
            r"got none\. Layers that could carry a similarity here: Linear",
        ),
        (nn.Sequential(nn.ReLU()), {}, r"could carry a similarity here: none"),
        (PlainCNN(), {"target_modules": ["features"]}, "got 'features', which is a Sequential"),
        (PlainCNN(), {"target_modules": ["clasifier"]}, "The nearest is 'classifier'"),
        (PlainCNN(), {"exclude_modules": ".*"}, "exclude_modules='.*', got none"),
        (
            nn.Sequential(nn.Conv2d(600, 2, 3)),
            {"scope": "full"},
            "got 5400. The matrix would hold 29,160,000",
        ),
        (PlainCNN(), {"structure": "dilated", "target_modules": ".*"}, "multiple of dilation 2"),
    ],
)
def test_what_cannot_be_attached_says_why_and_changes_nothing(model, options, message):
    before = state(model)
    with pytest.raises(ns.NeuralSimilarityError, match=message):
        attach(model, **options)
    assert state(model) == before


def test_attaching_twice_is_refused_and_changes_nothing():
    model = PlainCNN()
    attach(model, target_modules=["0"])
    before = state(model)
    with pytest.raises(ns.AttachError, match=r"got features.0, attached already. Merge first"):
        attach(model)
    assert state(model) == before
    assert attach(model, exclude_modules=["0"]) == ["features.0", "features.3", "features.6"]


def test_foreign_parametrizations_are_refused():
    model = nn.Sequential(parametrizations.weight_norm(nn.Conv2d(3, 4, 3)))
    with pytest.raises(
        ns.AttachError, match="0: expected a plain weight, got one that is parametrized"
    ):
        attach(model)
    assert parametrize.is_parametrized(model[0])


def test_shared_weights_are_refused():
    model = nn.Sequential(nn.Conv2d(3, 3, 3), nn.Conv2d(3, 3, 3))
    model[1].weight = model[0].weight
    with pytest.raises(
        ns.AttachError, match=r"got 0\.weight and 1\.weight, which are the same tensor"
    ):
        attach(model, exclude_modules=["1"])


def test_unknown_names_in_the_configuration():
    with pytest.raises(
        ns.UnknownNameError, match=r"StaticSimilarity: .* got 'diag'. Did you mean 'diagonal'"
    ):
        ns.StaticSimilarity("diag")
    with pytest.raises(
        ns.UnknownNameError, match=r"StaticSimilarity: .* got 'layers'. Did you mean 'layer'"
    ):
        ns.StaticSimilarity(scope="layers")


def test_static_conv2d_has_the_constructor_of_conv2d():
    conv = ns.nn.StaticConv2d(
        4, 6, (3, 5), 2, (1, 2), 1, 2, False, "reflect", structure="psd", scope="channel"
    )
    assert isinstance(conv, nn.Conv2d)
    assert conv.bias is None
    input = torch.randn(2, 4, 9, 11)
    disturb(conv)
    expected = conv(input)
    model = nn.Sequential(conv)
    ns.merge(model)
    assert type(model[0]) is nn.Conv2d
    torch.testing.assert_close(model(input), expected)
    assert not hasattr(model[0], "stock_class")


@pytest.mark.parametrize(
    "weights", [{"l1": 0.5}, {"l2": 0.25}, {"orthogonality": 2.0}, {"l1": 1.0, "l2": 3.0}]
)
@pytest.mark.parametrize("structure", ["diagonal", "unconstrained"])
@pytest.mark.parametrize("scope", SCOPES)
def test_penalties(scope, structure, weights):
    model = PlainCNN().double()
    attach(model, structure=structure, scope=scope)
    disturb(model)
    expected = 0.0
    for _, parametrization in named_similarities(model):
        M = parametrization.similarity()
        M = torch.diag_embed(M) if structure == "diagonal" else M
        for block in M.reshape(-1, *M.shape[-2:]):
            identity = torch.eye(len(block)).double()
            expected += weights.get("l1", 0) * block.abs().sum()
            expected += weights.get("l2", 0) * (block - identity).square().sum()
            away = block.T @ block - identity
            expected += weights.get("orthogonality", 0) * away.square().sum()
    penalty = ns.similarity_penalty(model, **weights)
    torch.testing.assert_close(penalty, expected)
    penalty.backward()
    assert all(p.grad.abs().max() > 0 for p in ns.similarity_parameters(model))
    with pytest.raises(ns.AttachError, match="similarity_penalty: expected a model with a static"):
        ns.similarity_penalty(PlainCNN())
