"""Other tensors in place of parameters, also of shared modules and tied weights."""

import pytest
import torch
from torch import nn

import neural_similarity as ns
from neural_similarity.fewshot.inner_loop.call_with import call_with


def shared_predictors():
    model = nn.Sequential(nn.Conv2d(3, 3, 3), nn.Conv2d(3, 3, 3))
    predictor = ns.SpherePredictor(hidden=4, start="authors")
    return ns.attach(model, ns.DynamicSimilarity(predictor=predictor, shared=True)).eval()


def tied_weights():
    model = nn.Sequential(nn.Conv2d(3, 3, 3), nn.ReLU(), nn.Conv2d(3, 3, 3), nn.BatchNorm2d(3))
    model[2].weight = model[0].weight
    return model.eval()


def twice_the_same_layer():
    layer = nn.Conv2d(3, 3, 3)
    return nn.Sequential(layer, nn.Tanh(), layer)


@pytest.mark.parametrize("make", [shared_predictors, tied_weights, twice_the_same_layer])
def test_every_place_gets_the_tensor_and_its_own_back(make):
    torch.manual_seed(0)
    model, image = make().double(), torch.randn(2, 3, 9, 9).double()
    places = {n: id(p) for n, p in model.named_parameters(remove_duplicate=False)}
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    others = {name: torch.randn_like(p) for name, p in model.named_parameters()}
    plain = model(image)
    found = call_with(model, others, image)
    assert {n: id(p) for n, p in model.named_parameters(remove_duplicate=False)} == places
    assert all(type(p) is nn.Parameter for p in model.parameters())
    assert torch.equal(model(image), plain)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            assert torch.equal(parameter, before[name])
            parameter.copy_(others[name])
    torch.testing.assert_close(found, model(image), rtol=0, atol=0)
    assert not torch.allclose(found, plain)


def test_gradients_reach_the_tensors():
    model, image = shared_predictors(), torch.randn(2, 3, 9, 9)
    tensors = {name: p.detach().requires_grad_() for name, p in model.named_parameters()}
    call_with(model, tensors, image).square().sum().backward()
    assert all(p.grad is None for p in model.parameters())
    assert all(tensor.grad is not None for tensor in tensors.values())
