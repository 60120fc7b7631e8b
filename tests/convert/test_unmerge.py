"""Merging and undoing it: the attached model is restored, bit for bit."""

import copy

import pytest
import torch
from support.cases import LAYERS, STRUCTURES, disturb, layers, output
from support.networks import PlainCNN, train_step
from torch import nn
from torch.nn.utils import parametrizations, parametrize

import neural_similarity as ns


def snapshot(model):
    return {
        "types": [type(module).__name__ for module in model.modules()],
        "state": {key: tensor.clone() for key, tensor in model.state_dict().items()},
        "keys": list(model.state_dict()),
        "parameters": [
            (n, id(p), p.requires_grad, p.stride()) for n, p in model.named_parameters()
        ],
        "active": ns.active_similarity(model),
        "names": ns.list_similarities(model),
    }


def assert_same(one, other):
    for key in ("types", "keys", "parameters", "active", "names"):
        assert one[key] == other[key], key
    assert all(torch.equal(tensor, other["state"][key]) for key, tensor in one["state"].items())


@pytest.mark.parametrize("structure", sorted(STRUCTURES))
@pytest.mark.parametrize("layer", LAYERS)
def test_there_and_back(layer, structure):
    module, shape = layers()[layer]
    module.eval()
    stock = type(module)
    ns.attach(module, ns.StaticSimilarity(STRUCTURES[structure], target_modules=".*"))
    disturb(module)
    input = torch.randn(shape)
    before, expected = snapshot(module), output(module, input)
    for _ in range(2):
        ns.merge(module, keep=True)
        assert type(module) is stock
        assert set(vars(module)) == set(vars(layers()[layer][0])), "nothing of ours is left"
        assert not module._load_state_dict_pre_hooks
        assert ns.merge(module, keep=True) is module, "a second merge does nothing"
        assert ns.unmerge(module) is module
        assert_same(snapshot(module), before)
        assert torch.equal(output(module, input), expected)
    copied = copy.deepcopy(module)
    assert torch.equal(output(copied, input), expected)
    module.load_state_dict(layers()[layer][0].state_dict())  # stock keys are accepted again


def test_every_name_returns_and_frozen_stays_frozen():
    model = PlainCNN().eval()
    for name in ("birds", "default", "cars"):
        ns.attach(model, ns.StaticSimilarity("unconstrained"), name=name)
        disturb(model)
    ns.set_similarity(model, "birds")
    ns.freeze_backbone(model)
    before, input = snapshot(model), torch.randn(2, 3, 12, 10)
    results = {task: ns.set_similarity(model, task)(input) for task in ("cars", None, "birds")}
    ns.merge(model, keep=True)
    torch.testing.assert_close(model(input), results["birds"])
    model.requires_grad_(True)
    model.classifier.requires_grad_(True)
    ns.unmerge(model)
    after = snapshot(model)
    assert [p[2] for p in after["parameters"] if "original" in p[0]] == [False] * 3
    model.features[1].requires_grad_(False)
    for conv in (model.features[3], model.features[6]):
        conv.bias.requires_grad_(False)
    assert_same(snapshot(model), before)
    for task, expected in results.items():
        assert torch.equal(ns.set_similarity(model, task)(input), expected)


def test_a_layer_that_was_built_static_is_static_again():
    model = nn.Sequential(ns.nn.StaticConv2d(3, 4, 3, structure="psd"))
    disturb(model)
    before = snapshot(model)
    ns.merge(model, keep=True)
    assert type(model[0]) is nn.Conv2d
    ns.unmerge(model)
    assert isinstance(model[0], ns.nn.StaticConv2d)
    assert_same(snapshot(model), before)
    model[0].reset_parameters()


def test_what_cannot_be_undone_says_why():
    plain = PlainCNN()
    with pytest.raises(ns.MergeError, match=r"unmerge: expected a model merged with .*keep=True"):
        ns.unmerge(plain)
    merged = ns.merge(ns.attach(plain, ns.StaticSimilarity()))
    with pytest.raises(ns.MergeError, match="got one without kept"):
        ns.unmerge(merged)
    kept = ns.merge(ns.attach(PlainCNN(), ns.StaticSimilarity()), keep=True)
    with pytest.raises(ns.MergeError, match="A copy of a merged model does not have them"):
        ns.unmerge(copy.deepcopy(kept))
    train_step(kept, torch.randn(5, 3, 12, 10), learning_rate=1e-3)
    state = {key: tensor.clone() for key, tensor in kept.state_dict().items()}
    with pytest.raises(
        ns.MergeError, match=r"expected weight of layer 'features.0' as merge left it"
    ):
        ns.unmerge(kept)
    assert all(torch.equal(tensor, state[key]) for key, tensor in kept.state_dict().items())
    assert list(kept.state_dict()) == list(state)
    again = ns.merge(ns.attach(PlainCNN(), ns.StaticSimilarity()), keep=True)
    ns.attach(again, ns.StaticSimilarity())
    with pytest.raises(ns.MergeError, match="got one with a new similarity"):
        ns.unmerge(again)
    ns.merge(again)
    with pytest.raises(ns.MergeError, match="got one without kept"):
        ns.unmerge(again)  # the last merge kept nothing


def test_what_is_merged_cannot_be_switched():
    model = ns.attach(PlainCNN(), ns.StaticSimilarity(), name="birds")
    ns.merge(model, keep=True)
    for name in ("birds", None):
        with pytest.raises(ns.AttachError, match=r"got 'birds' merged into .*unmerge\(model\)"):
            ns.set_similarity(model, name)
    with pytest.raises(ns.AttachError, match="merged into"), ns.without_similarity(model):
        pass
    with pytest.raises(ns.AttachError, match="expected a model with an attached similarity"):
        ns.set_similarity(model, "cars")
    assert ns.active_similarity(ns.set_similarity(ns.unmerge(model), None)) is None


def test_a_file_is_not_read_into_merged_weights(tmp_path):
    """M would be applied twice."""
    model = nn.Sequential(nn.Conv2d(3, 4, 3))
    ns.attach(model, ns.StaticSimilarity())
    disturb(model)
    ns.save_similarity(model, tmp_path / "m.safetensors")
    ns.merge(model, keep=True)
    before = model[0].weight.clone()
    with pytest.raises(ns.AttachError, match=r"load_similarity: .* merged into the weights\. Call"):
        ns.load_similarity(model, tmp_path / "m.safetensors")
    assert torch.equal(model[0].weight, before)
    ns.unmerge(model)


def test_a_layer_that_the_active_similarity_does_not_have():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3))
    ns.attach(model, ns.StaticSimilarity(target_modules=["0"]), name="birds")
    ns.attach(model, ns.StaticSimilarity(target_modules=["1"]), name="cars")
    disturb(model)
    before = snapshot(model)
    ns.unmerge(ns.merge(model, keep=True))
    assert_same(snapshot(model), before)
    ns.merge(model, keep=True)
    with torch.no_grad():
        model[0].weight.add_(1)
    with pytest.raises(ns.MergeError, match="expected weight of layer '0' as merge left it"):
        ns.unmerge(model)


def test_after_a_move_to_another_precision():
    model = ns.attach(PlainCNN(), ns.StaticSimilarity("unconstrained"))
    disturb(model)
    ns.merge(model, keep=True).to(torch.bfloat16)
    ns.unmerge(model)
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    model(torch.randn(2, 3, 12, 10, dtype=torch.bfloat16))


def test_parametrizations_of_others():
    conv = nn.Conv2d(3, 4, 3)
    parametrize.register_parametrization(conv, "bias", nn.Tanh())
    ns.attach(conv, ns.StaticSimilarity())
    disturb(conv)
    before = snapshot(conv)
    ns.unmerge(ns.merge(conv, keep=True))
    assert_same(snapshot(conv), before)
    other = ns.attach(nn.Conv2d(3, 4, 3), ns.StaticSimilarity())
    parametrizations.weight_norm(other)
    with pytest.raises(
        ns.MergeError, match=r"got a _WeightNorm as well. unmerge could not restore it"
    ):
        ns.merge(other, keep=True)
    assert len(list(ns.similarity_parameters(other))) == 1
    with pytest.raises(ns.AttachError, match="got one with another parametrization"):
        ns.attach(other, ns.StaticSimilarity(), name="second")


def test_kept_weights_cost_nothing_but_themselves():
    model = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False))
    storage = model[0].weight.untyped_storage().data_ptr()
    ns.attach(model, ns.StaticSimilarity())
    disturb(model)
    ns.merge(model, keep=True)
    ns.unmerge(model)
    assert model[0].parametrizations.weight.original.untyped_storage().data_ptr() == storage


def test_a_weight_that_was_tied_since_is_not_changed():
    model = ns.attach(nn.Sequential(nn.Conv2d(4, 4, 3)), ns.StaticSimilarity())
    for parameter in ns.similarity_parameters(model):
        nn.init.normal_(parameter)
    ns.merge(model, keep=True)
    model.append(nn.Conv2d(4, 4, 3))
    model[1].weight = model[0].weight
    before = model[1].weight.detach().clone()
    with pytest.raises(ns.MergeError, match=r"separate weights, got 0\.weight and 1\.weight"):
        ns.unmerge(model)
    assert torch.equal(model[1].weight, before)
    model[1].weight = nn.Parameter(before.clone())
    ns.unmerge(model)
    assert not torch.equal(model[0].parametrizations.weight.original, before)
