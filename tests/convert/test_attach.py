"""Attaching: to every layer, at the identity, by every way of naming; refusing what is wrong."""

import warnings

import pytest
import torch
from support import oracle
from support.cases import (
    GEOMETRIES,
    LAYERS,
    SCOPES,
    STARTS_AT_IDENTITY,
    STRUCTURES,
    disturb,
    layers,
    output,
)
from support.fast_cases import torch_warns_about_itself
from support.networks import PlainCNN, ResNet
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune

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
    with pytest.raises(ns.AttachError, match=r"got '1'\. No layer's name ends in it"):
        attach(ResNet(), target_modules=["1"])


class Choosy(PlainCNN):
    similarity_layers = r"features\.[36]"


def test_the_network_chooses_its_layers_unless_the_configuration_does():
    assert attach(Choosy()) == ["features.3", "features.6"]
    assert attach(Choosy(), exclude_modules=["3"]) == ["features.6"]
    assert attach(Choosy(), target_modules="all-conv") == attach(PlainCNN())
    assert attach(Choosy(), target_modules=["0"]) == ["features.0"]
    model = ns.attach(Choosy(), ns.DynamicSimilarity())
    assert [n for n, m in model.named_modules() if layer_similarities(m)] == [
        "features.3", "features.6",
    ]  # fmt: skip


@torch_warns_about_itself
@pytest.mark.parametrize("wrap", [nn.DataParallel, torch.compile], ids=["parallel", "compiled"])
def test_the_choice_of_a_wrapped_network(wrap):
    model = Choosy()
    ns.attach(wrap(model), ns.StaticSimilarity())
    assert attached(model) == ["features.3", "features.6"]


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
    with pytest.raises(ns.AttachError, match=r"got only 1×1 kernels \(model\)"):
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
            r"got none\. Layers here that could have a similarity: Linear",
        ),
        (nn.Sequential(nn.ReLU()), {}, r"could have a similarity: none"),
        (PlainCNN(), {"target_modules": ["features"]}, "got 'features', which is a Sequential"),
        (PlainCNN(), {"target_modules": ["clasifier"]}, "The nearest is 'classifier'"),
        (PlainCNN(), {"exclude_modules": ".*"}, "exclude_modules='.*', got none"),
        (
            nn.Sequential(nn.Conv2d(600, 2, 3)),
            {"structure": "unconstrained", "scope": "full"},
            "got up to 29,160,000 for structure 'unconstrained' and scope 'full'",
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
    with pytest.raises(ns.AttachError, match=r"got features.0, attached already. Merge"):
        attach(model)
    assert state(model) == before
    assert attach(model, exclude_modules=["0"]) == ["features.0", "features.3", "features.6"]


def test_foreign_parametrizations_are_refused():
    model = nn.Sequential(parametrizations.weight_norm(nn.Conv2d(3, 4, 3)))
    with pytest.raises(
        ns.AttachError, match="0: expected a plain weight, got one with a parametrization from"
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


def effective_by_loops(layer, W, M, scope):
    """The stored weight that the layer should use, one kernel and channel at a time."""
    groups = getattr(layer, "groups", 1)
    transposed = "Transpose" in type(layer).__name__
    result = torch.empty_like(W)
    rows, columns = W.shape[:2]
    taps = W[0, 0].numel() if W.dim() > 2 else M.shape[-1]
    if scope == "full" and W.dim() == 2:
        taps = columns
    for a in range(rows):
        if scope == "full" and not transposed:
            matrix = torch.diag(M) if M.dim() == 1 else M
            result[a] = (matrix.T @ W[a].reshape(-1)).reshape(W[a].shape)
            continue
        for b in range(columns if W.dim() > 2 else columns // taps):
            group = a // (rows // groups)
            channel = a if transposed else group * columns + b
            kernel = group * columns + b if transposed else a
            block = {
                "layer": lambda: M,
                "channel": lambda c=channel: M[c],
                "kernel": lambda k=kernel: M[k],
            }
            m = block[scope]()
            m = torch.diag(m) if m.dim() == 1 else m
            part = slice(b * taps, (b + 1) * taps) if W.dim() == 2 else b
            result[a, part] = (m.T @ W[a, part].reshape(-1)).reshape(W[a, part].shape)
    return result


@pytest.mark.parametrize("structure", ["diagonal", "unconstrained"])
@pytest.mark.parametrize(
    ("layer", "scope"),  # the full matrix of a transposed convolution has a case of its own
    [(la, s) for la in LAYERS for s in SCOPES if not (s == "full" and "transpose" in la)],
)
def test_the_weight_of_every_layer_by_explicit_loops(layer, scope, structure):
    plain, _ = layers()[layer]
    module, _ = layers()[layer]
    plain.double()
    module.double()
    module.load_state_dict(plain.state_dict())
    attach(module, structure=structure, scope=scope, target_modules=".*")
    disturb(module)
    for name, similarity in layer_similarities(module).items():
        M = similarity.similarity().detach()
        truth = effective_by_loops(plain, getattr(plain, name).detach(), M, scope)
        torch.testing.assert_close(getattr(module, name).detach(), truth)


def test_the_full_matrix_of_a_transposed_convolution():
    """One matrix over (input channel, tap), applied to every kernel of every group alike."""
    conv = nn.ConvTranspose2d(4, 6, (3, 2), groups=2).double()
    W = conv.weight.detach().clone()
    attach(conv, structure="unconstrained", scope="full")
    disturb(conv)
    M = conv.parametrizations.weight[0].similarity().detach()
    truth = torch.empty_like(W)
    for group in range(2):
        for o in range(3):
            kernel = W[2 * group : 2 * group + 2, o].reshape(-1)
            truth[2 * group : 2 * group + 2, o] = (M.T @ kernel).reshape(2, 3, 2)
    torch.testing.assert_close(conv.weight.detach(), truth)


def test_all_conv_means_transposed_ones_too():
    model = nn.Sequential(nn.Conv1d(2, 2, 3), nn.ConvTranspose3d(2, 2, 3), nn.Linear(2, 2))
    assert attach(model) == ["0", "1"]


def test_a_module_with_two_names_is_one_layer():
    conv = nn.Conv2d(3, 3, 3)
    assert attach(nn.Sequential(conv, nn.ReLU(), conv), target_modules=["2"]) == ["0"]
    with pytest.raises(ns.AttachError, match="got none"):
        attach(nn.Sequential(nn.Conv2d(3, 3, 3)), exclude_modules=["0"])


def test_what_fails_late_changes_nothing():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 5, 3))
    prune.l1_unstructured(model[2], "weight", 0.5)
    before = state(model)
    with pytest.raises(
        ns.AttachError, match=r"2: expected weight to be a parameter .* got none. Pruning"
    ):
        attach(model)
    assert state(model) == before
    with pytest.raises(ns.AttachError, match="got one whose shape is not known yet"):
        attach(nn.Sequential(nn.LazyConv2d(4, 3)))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ns.attach(3, ns.StaticSimilarity()), "expected model to be an nn.Module, got int"),
        (
            lambda: ns.attach(PlainCNN(), "diagonal"),
            "expected a StaticSimilarity or Dynamic.*got 'diagonal'",
        ),
        (lambda: ns.StaticSimilarity(target_modules=[0]), r"target_modules .* got \[0\]"),
        (lambda: ns.attach(PlainCNN(), ns.StaticSimilarity(), name=""), "name .* got ''"),
        (lambda: ns.attach(PlainCNN(), ns.StaticSimilarity(), name="a.b"), "dots, got 'a.b'"),
        (lambda: ns.attach(PlainCNN(), ns.StaticSimilarity(), name=3), "name .* got 3"),
        (lambda: ns.StaticSimilarity(exclude_modules=3), "exclude_modules .* got 3"),
        (
            lambda: ns.StaticSimilarity(target_modules="*conv"),
            r"regular expression .*give a list: \['\*conv'\]",
        ),
        (
            lambda: ns.StaticSimilarity(block_size=2.0),
            "block_size to be a whole number or None, got 2.0",
        ),
        (
            lambda: attach(PlainCNN(), exclude_modules=["nothing"]),
            "got 'nothing'. No name ends in it",
        ),
    ],
)
def test_wrong_kinds_of_settings(call, message):
    with pytest.raises(ns.AttachError, match=message):
        call()


def test_meta_tensors_can_be_attached():
    model = nn.Sequential(nn.Conv2d(3, 4, 3, device="meta"))
    assert attach(model) == ["0"]
    assert model[0].weight.is_meta


def test_initialising_a_static_conv2d():
    conv = ns.nn.StaticConv2d(3, 4, 3)
    disturb(conv)
    before, M = conv.weight.detach(), next(ns.similarity_parameters(conv)).clone()
    torch.manual_seed(3)
    conv.reset_parameters()
    assert not torch.equal(conv.weight, before)
    assert torch.equal(next(ns.similarity_parameters(conv)), M)
    torch.manual_seed(3)
    fresh = nn.Conv2d(3, 4, 3)
    assert torch.equal(conv.parametrizations.weight.original, fresh.weight)
    assert torch.equal(conv.bias, fresh.bias)
