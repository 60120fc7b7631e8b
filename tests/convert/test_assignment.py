"""Assigning to the weight of an attached layer: it reads back, or the assignment is refused."""

import pytest
import torch
from support.cases import (
    LAYERS,
    SCOPES,
    STARTS_AT_IDENTITY,
    STRUCTURES,
    disturb,
    layers,
    relative_difference,
)
from torch import nn

import neural_similarity as ns
from neural_similarity.nn.inventory import layer_similarities


def matrices(similarity):
    M = similarity.similarity().detach()
    return torch.diag_embed(M) if similarity.is_diagonal else M


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize(
    "layer", ["conv2d", "conv2d-depthwise", "conv_transpose2d", "linear", "gru"]
)
def test_every_structure_and_scope(layer, structure, scope):
    module = layers()[layer][0].double()
    ns.attach(module, ns.StaticSimilarity(STRUCTURES[structure], scope, target_modules=".*"))
    disturb(module)
    for name, similarity in layer_similarities(module).items():
        before, W = getattr(module, name).detach(), torch.randn_like(getattr(module, name))
        original = module.get_parameter(f"parametrizations.{name}.original")
        M = similarity.similarity().detach().clone()
        condition = torch.linalg.cond(matrices(similarity)).max()
        if condition < 1e6:
            setattr(module, name, W)
            assert relative_difference(getattr(module, name).detach(), W) < 1e-14 * condition
        elif condition > 1e12:
            with pytest.raises(
                ns.ShapeError, match=r"weight: expected a similarity that can be inv"
            ):
                setattr(module, name, W)
            assert torch.equal(getattr(module, name), before)
        assert torch.equal(similarity.similarity(), M)
        assert module.get_parameter(f"parametrizations.{name}.original") is original


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("structure", STARTS_AT_IDENTITY)
def test_at_the_identity_it_is_exact(structure, scope, dtype):
    conv = nn.Conv2d(4, 6, (5, 3), groups=2).to(dtype)
    ns.attach(conv, ns.StaticSimilarity(STRUCTURES[structure], scope))
    W = torch.randn_like(conv.weight)
    conv.weight = W
    assert torch.equal(conv.weight, W)
    assert torch.equal(conv.parametrizations.weight.original, W)
    with torch.no_grad():
        conv.parametrizations.weight.original.zero_()
    assert W.abs().max() > 0, "the layer does not share memory with what was assigned"


def test_attaching_never_changes_the_weight():
    """PyTorch calls right_inverse when it registers a parametrization, too."""
    conv = nn.Conv2d(3, 4, 5)
    W = conv.weight.detach().clone()
    ns.attach(conv, ns.StaticSimilarity("dilated"))
    assert torch.equal(conv.parametrizations.weight.original, W)
    with pytest.raises(
        ns.ShapeError, match=r"structure 'dilated' with a singular .* copy W itself"
    ):
        conv.weight = W
    possible = conv.weight.detach().clone()  # it is zero where taps were removed
    conv.weight = possible
    torch.testing.assert_close(conv.weight, possible)


@pytest.mark.parametrize("layer", LAYERS)
def test_the_active_similarity_alone_counts(layer):
    module = layers()[layer][0]
    config = ns.StaticSimilarity("unconstrained", block_size=1, target_modules=".*")
    ns.attach(module, config, name="birds")
    disturb(module)
    ns.attach(module, config, name="cars")
    disturb(module)
    for active in ("birds", "cars", None):
        ns.set_similarity(module, active)
        for name in module.parametrizations:
            W = torch.randn_like(getattr(module, name))
            setattr(module, name, W)
            torch.testing.assert_close(getattr(module, name).detach(), W, rtol=1e-2, atol=1e-3)


def test_a_wrong_shape_is_refused():
    conv = ns.attach(nn.Conv2d(3, 4, 3), ns.StaticSimilarity())
    with pytest.raises(ns.ShapeError, match=r"of shape \(4, 3, 3, 3\), got \(4, 3, 5, 5\)"):
        conv.weight = torch.randn(4, 3, 5, 5)
    ns.set_similarity(conv, None)
    with pytest.raises(ns.ShapeError, match=r"of shape \(4, 3, 3, 3\), got \(4, 3\)"):
        conv.weight = torch.randn(4, 3)


def test_singular_and_nan():
    conv = ns.attach(nn.Conv2d(3, 4, 3), ns.StaticSimilarity("unconstrained"))
    M = next(ns.similarity_parameters(conv))
    for broken in (torch.ones_like(M), torch.zeros_like(M), torch.full_like(M, torch.nan)):
        M.data = broken
        with pytest.raises(ns.ShapeError, match="'unconstrained' with a singular or badly"):
            conv.weight = torch.randn(4, 3, 3, 3)
