"""The layers of predictors are modules like any other: hooks, pruning and wrappers reach them."""

import pytest
import torch
from support.cases import PATCH_PREDICTORS as PATCH
from support.cases import PREDICTORS
from torch import nn
from torch.nn.utils import parametrize, prune
from torch.utils.checkpoint import checkpoint

import neural_similarity as ns


def layer(predictor, training=True):
    """With parameters that are not at their start, so that M depends on every one of them."""
    torch.manual_seed(0)
    conv = ns.nn.DynamicConv2d(4, 6, 3, padding=1, predictor=predictor).double()
    for parameter in conv.predictor.parameters():
        nn.init.normal_(parameter, std=0.5)
    return conv.train(training)


def images():
    return torch.randn(3, 4, 7, 6, generator=torch.Generator().manual_seed(1)).double()


def both(conv):
    return conv.predictor.network.first, conv.predictor.network.last


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", PATCH)
def test_hooks_see_both_layers_and_change_their_output(name, training):
    conv = layer(PATCH[name], training)
    before, seen = conv(images()), []
    hooks = [part.register_forward_hook(lambda *call: seen.append(1)) for part in both(conv)]
    torch.testing.assert_close(conv(images()), before)
    assert seen == [1, 1]
    hooks[0].remove()
    both(conv)[0].register_forward_hook(lambda module, inputs, output: torch.zeros_like(output))
    assert not torch.allclose(conv(images()), before)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", PATCH)
def test_pruned_layers_compute_with_what_is_left(name, training):
    conv, plain = layer(PATCH[name], training), layer(PATCH[name], training)
    for part, same in zip(both(conv), both(plain), strict=True):
        prune.ln_structured(part, "weight", amount=0.5, n=2, dim=1)
        same.weight.data.mul_(part.weight_mask)
    for _ in range(2):  # a second backward pass has a graph of its own
        torch.testing.assert_close(conv(images()), plain(images()))
        conv(images()).sum().backward()
    assert both(conv)[0].weight_orig.grad is not None


@pytest.mark.parametrize("name", PATCH)
def test_a_spectral_norm_is_applied_and_trained(name):
    conv = layer(PATCH[name])
    first = both(conv)[0]
    nn.utils.spectral_norm(first, n_power_iterations=30)
    conv(images()).square().sum().backward()
    assert first.weight_orig.grad is not None
    norm = torch.linalg.matrix_norm(first.weight.detach().flatten(1), 2).item()
    assert norm == pytest.approx(1, rel=1e-6)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", PATCH)
def test_a_parametrized_weight(name, training):
    class Double(nn.Module):
        def forward(self, weight):
            return 2 * weight

    conv, plain = layer(PATCH[name], training), layer(PATCH[name], training)
    parametrize.register_parametrization(both(conv)[1], "weight", Double())
    both(plain)[1].weight.data.mul_(2)
    torch.testing.assert_close(conv(images()), plain(images()))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", PATCH)
def test_a_wrapper_takes_the_place_of_a_layer(name, training):
    class Adapter(nn.Module):
        """As those of low rank: it shows the weight, and changes the output."""

        def __init__(self, base):
            super().__init__()
            self.base, self.weight = base, base.weight

        def forward(self, *arguments):
            return self.base(*arguments).abs()

    conv = layer(PATCH[name], training)
    for place in ("first", "last"):
        before, network = conv(images()), conv.predictor.network
        setattr(network, place, Adapter(getattr(network, place)))
        assert not torch.allclose(conv(images()), before)


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", PREDICTORS)
def test_gradient_checkpointing(name, training, reentrant):
    conv, input = layer(PREDICTORS[name], training), images().requires_grad_()
    parts = [input, *conv.parameters()]
    expected = torch.autograd.grad(conv(input).square().sum(), parts)
    checkpoint(conv, input, use_reentrant=reentrant).square().sum().backward()
    for part, gradient in zip(parts, expected, strict=True):
        torch.testing.assert_close(part.grad, gradient)


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_penalty_without_a_gradient_is_refused(reentrant):
    conv = ns.nn.DynamicConv2d(3, 4, 3, predictor=ns.SpherePredictor(hidden=2))
    input = torch.randn(2, 3, 5, 5, requires_grad=True)
    with ns.keep_predictions(conv):
        checkpoint(conv, input, use_reentrant=reentrant)
        if reentrant:
            with pytest.raises(ns.AttachError, match=r"a gradient, got one without.*reentrant"):
                ns.similarity_penalty(conv, l2=1.0)
            with torch.no_grad():
                assert ns.similarity_penalty(conv, l1=1.0) > 0
        else:
            ns.similarity_penalty(conv, l1=1.0).backward()
            assert any(p.grad is not None for p in conv.predictor.parameters())


def test_a_penalty_on_a_kernel_shape_needs_no_trained_predictor():
    config = ns.DynamicSimilarity(ns.structures.KernelShape("diagonal"))
    model = ns.attach(nn.Sequential(nn.Conv2d(3, 4, 3)), config)
    (similarity,) = (m for m in model.modules() if isinstance(m, ns.nn.PredictedSimilarity))
    model.requires_grad_(False)
    similarity.shape_numbers.requires_grad_(True)
    with ns.keep_predictions(model):
        model(torch.randn(2, 3, 5, 5))
        ns.similarity_penalty(model, l1=1.0).backward()
    assert similarity.shape_numbers.grad.abs().sum() > 0


def test_a_penalty_in_half_precision_is_finite():
    model = ns.attach(nn.Sequential(nn.Conv2d(2, 2, 3)), ns.StaticSimilarity()).half()
    next(ns.similarity_parameters(model)).data[0] = 17
    assert ns.similarity_penalty(model, l1=1e-4).item() == pytest.approx(25e-4, rel=1e-3)
    many = ns.attach(nn.Sequential(nn.Conv2d(2, 2, 3, padding=1)), ns.DynamicSimilarity()).half()
    with ns.keep_predictions(many), torch.no_grad():
        many.eval()(torch.zeros(4, 2, 96, 96, dtype=torch.half))
        assert ns.similarity_penalty(many, l1=1.0).item() == pytest.approx(9)
