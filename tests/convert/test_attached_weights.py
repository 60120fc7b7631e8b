"""What an attached layer computes: every layer, structure and scope, against definitions."""

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
    half,
    layers,
    output,
)
from support.networks import PlainCNN
from torch import nn

import neural_similarity as ns
from neural_similarity.nn.inventory import layer_similarities, named_similarities


def attach(model, **options):
    return ns.attach(model, ns.StaticSimilarity(**options))


@pytest.mark.parametrize(("layer", "structure", "scope"), half(LAYERS, STARTS_AT_IDENTITY, SCOPES))
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
    with pytest.raises(ns.AttachError, match=r"similarity_penalty: .* got one without"):
        ns.similarity_penalty(PlainCNN())


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
