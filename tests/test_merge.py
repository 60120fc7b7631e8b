"""Merging: equal outputs, stock classes and keys, nothing of ours left, a check that can fail."""

import copy
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from cases import LAYERS, SCOPES, STRUCTURES, disturb, layers, output, relative_difference
from networks import NETWORKS, PlainCNN, train_step
from torch import nn

import neural_similarity as ns
from neural_similarity import structures

BOUND = {torch.float32: 1e-5, torch.float64: 1e-12}


def is_stock(module):
    return all(type(m).__module__.startswith("torch.nn.modules") for m in module.modules())


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("layer", LAYERS)
def test_every_layer_structure_and_scope(layer, structure, scope):
    module, shape = layers()[layer]
    stock, keys = type(module), list(module.state_dict())
    module.double().eval()
    input = torch.randn(shape, dtype=torch.float64)
    base = output(module, input)
    ns.attach(module, ns.StaticSimilarity(STRUCTURES[structure], scope, target_modules=".*"))
    disturb(module)
    before = output(module, input)
    assert relative_difference(before, base) > 1e-3, "the similarity did nothing"
    ns.merge(module)
    assert relative_difference(output(module, input), before) <= 1e-12
    assert type(module) is stock
    assert sorted(module.state_dict()) == sorted(keys)


@pytest.mark.filterwarnings("ignore::neural_similarity.SkippedLayerWarning")
@pytest.mark.parametrize("dtype", BOUND)
@pytest.mark.parametrize("structure", ["diagonal", "unconstrained", "orthogonal", "kernel_shape"])
@pytest.mark.parametrize("network", NETWORKS)
def test_attach_train_merge(network, structure, dtype):
    make, shape, targets = NETWORKS[network]
    model = make().to(dtype)
    stock_keys = list(model.state_dict())
    identities = {id(p) for p in model.parameters()}
    ns.attach(model, ns.StaticSimilarity(structure, target_modules=targets))
    input = torch.randn(shape, dtype=dtype)
    base = model.eval()(input)
    train_step(model.train(), input)
    before = model.eval()(input)
    assert relative_difference(before, base) > 1e-3, "training did nothing"
    moved = [p for p in ns.similarity_parameters(model) if p.grad.abs().max() > 0]
    assert moved, "the similarity received no gradient"

    state = ns.effective_state_dict(model)
    assert sorted(state) == sorted(stock_keys)
    merged = ns.merge(model)
    assert merged is model
    assert relative_difference(model(input), before) <= BOUND[dtype]
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    assert {id(p) for p in model.parameters()} == identities
    plain = make().to(dtype).eval()
    plain.load_state_dict(model.state_dict())
    assert torch.equal(plain(input), model(input))
    assert [type(m) for m in model.modules()] == [type(m) for m in plain.modules()]
    assert not any(m._load_state_dict_pre_hooks for m in model.modules())


def test_a_second_merge_does_nothing():
    model = ns.merge(ns.attach(PlainCNN(), ns.StaticSimilarity()))
    before = {k: v.clone() for k, v in model.state_dict().items()}
    assert ns.merge(model) is model
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_merging_what_was_never_attached_is_an_error():
    with pytest.raises(
        ns.MergeError, match=r"expected a model with an attached similarity, got one without. Call"
    ):
        ns.merge(PlainCNN())


def test_merging_a_copy_leaves_the_original_attached():
    model = ns.attach(PlainCNN(), ns.StaticSimilarity("unconstrained")).eval()
    disturb(model)
    input = torch.randn(2, 3, 12, 10)
    before = model(input)
    merged = ns.merge(copy.deepcopy(model))
    assert is_stock(merged.features)
    torch.testing.assert_close(merged(input), before)
    assert torch.equal(model(input), before)
    assert len(list(ns.similarity_parameters(model))) == 3
    torch.testing.assert_close(ns.merge(model)(input), before)


@dataclass(frozen=True)
class Restless(structures.Structure):
    """A structure that is not a function of its numbers: merging cannot be right."""

    name: ClassVar[str] = "restless"

    def initial(self, block):
        return {"diagonal": torch.ones(block.size)}

    def similarity(self, numbers, block):
        return numbers["diagonal"] * (1 + torch.rand(block.size).to(numbers["diagonal"]))


@pytest.mark.parametrize("kind", ["restless", "nan"])
def test_a_merge_that_would_change_outputs_is_refused_and_changes_nothing(kind):
    model = PlainCNN()
    ns.attach(model, ns.StaticSimilarity("diagonal", target_modules=["0", "3"]))
    if kind == "restless":
        ns.attach(model, ns.StaticSimilarity(Restless(), target_modules=["6"]))
    else:
        ns.attach(model, ns.StaticSimilarity(target_modules=["6"]))
        with torch.no_grad():
            model.features[6].parametrizations.weight[0].numbers["diagonal"][0] = torch.nan
    state = {k: v.clone() for k, v in model.state_dict().items()}
    with pytest.raises(ns.MergeError, match=r"layer 'features.6' .* The model is unchanged"):
        ns.merge(model)
    after = model.state_dict()
    assert list(after) == list(state)
    assert all(torch.equal(after[k].nan_to_num(), v.nan_to_num()) for k, v in state.items())


def test_hooks_random_numbers_and_mode_are_left_alone():
    model = ns.attach(PlainCNN(), ns.StaticSimilarity()).train()
    calls = []
    model.features[0].register_forward_hook(lambda *_: calls.append(1))
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    ns.merge(model)
    assert torch.equal(torch.rand(3), expected)
    assert calls == []
    assert all(m.training for m in model.modules())
    model(torch.randn(2, 3, 12, 10))
    assert calls == [1]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("structure", STRUCTURES)
def test_half_precision(structure, dtype):
    conv = nn.Conv2d(4, 6, (3, 5)).to(dtype)
    model = ns.attach(nn.Sequential(conv), ns.StaticSimilarity(STRUCTURES[structure]))
    disturb(model)
    input = torch.randn(2, 4, 6, 8, dtype=dtype)
    before = model(input)
    assert before.dtype == dtype
    assert relative_difference(ns.merge(model)(input), before) <= 2 * torch.finfo(dtype).eps


def test_channels_last_stays_channels_last():
    model = PlainCNN().to(memory_format=torch.channels_last)
    ns.attach(model, ns.StaticSimilarity("unconstrained"))
    disturb(model)
    input = torch.randn(2, 3, 12, 10).to(memory_format=torch.channels_last)
    before = model.eval()(input)
    ns.merge(model)
    assert model.features[3].weight.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(model(input), before)
