"""Taking similarities off: the stock network again, bit for bit."""

import copy
import pickle
from dataclasses import replace

import pytest
import torch
from support.networks import PlainCNN
from torch import nn
from torch.nn.utils import parametrize

import neural_similarity as ns

IMAGE_M = ns.DynamicSimilarity(predictor=ns.ImagePredictor(hidden=2), over="both")
CONFIGS = {
    "static": ns.StaticSimilarity("unconstrained"),
    "kernels": ns.StaticSimilarity("diagonal", scope="kernel"),
    "patch": ns.DynamicSimilarity(predictor=ns.SpherePredictor(hidden=2)),
    "shared": ns.DynamicSimilarity(predictor=ns.SpherePredictor(hidden=2), shared=True),
    "image": IMAGE_M,
}


class Same(nn.Conv2d):
    """TensorFlow's padding, in a forward of its own."""

    def forward(self, input):
        return super().forward(nn.functional.pad(input, (0, 1, 0, 1)))


LAYERS = {
    "cnn": (PlainCNN, (2, 3, 12, 10)),
    "conv1d": (lambda: nn.Sequential(nn.Conv1d(3, 4, 3)), (2, 3, 9)),
    "linear": (lambda: nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 4)), (5, 6)),
    "subclass": (lambda: nn.Sequential(Same(3, 4, 3, 2)), (2, 3, 8, 8)),
    "lstm": (lambda: nn.Sequential(nn.LSTMCell(3, 4)), (2, 3)),
}
FLAT = ("linear", "lstm")  # without positions, which one M per image needs


def disturbed(model):
    with torch.no_grad():
        for parameter in ns.similarity_parameters(model):
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


@pytest.mark.parametrize(
    ("name", "config"),
    [(n, c) for n in LAYERS for c in CONFIGS if not (n in FLAT and c == "image")],
)
def test_the_network_is_the_one_before(name, config):
    make, shape = LAYERS[name]
    model, input = make().eval(), torch.randn(shape)
    plain, parameters = copy.deepcopy(model), dict(model.named_parameters())
    chosen = replace(CONFIGS[config], target_modules=r"\d" if name in FLAT else None)
    disturbed(ns.attach(model, chosen))
    assert ns.detach(model) is model
    assert [type(m) for m in model.modules()] == [type(m) for m in plain.modules()]
    assert list(model.state_dict()) == list(plain.state_dict())
    assert list(dict(model.named_parameters())) == list(parameters)
    assert all(p is parameters[key] for key, p in model.named_parameters())
    for module, other in zip(model.modules(), plain.modules(), strict=True):
        assert vars(module).keys() == vars(other).keys()
        assert not module._forward_pre_hooks
        assert not module._load_state_dict_pre_hooks
    ours, theirs = model(input), plain(input)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
    model.load_state_dict(plain.state_dict())
    if name != "subclass":
        pickle.loads(pickle.dumps(model))
    assert ns.list_similarities(ns.attach(model, chosen)) == ["default"]


@pytest.mark.parametrize("config", ["static", "patch"])
def test_one_of_several(config):
    model, input = PlainCNN().eval(), torch.randn(2, 3, 12, 10)
    for name in ("birds", "cars", "ships"):
        disturbed(ns.attach(model, CONFIGS[config], name=name))
    outputs = {name: ns.set_similarity(model, name)(input) for name in ("birds", "cars", "ships")}
    ns.set_similarity(model, "birds")
    ns.detach(model, "cars")
    assert ns.list_similarities(model) == ["birds", "ships"]
    assert ns.active_similarity(model) == "birds"
    assert torch.equal(model(input), outputs["birds"])
    assert torch.equal(ns.set_similarity(model, "ships")(input), outputs["ships"])
    ns.detach(model, "ships")  # it was active
    assert ns.active_similarity(model) is None
    assert torch.equal(ns.set_similarity(model, "birds")(input), outputs["birds"])
    ns.attach(model, CONFIGS[config], name="cars")
    assert ns.list_similarities(ns.detach(model)) == []


@pytest.mark.parametrize("config", ["static", "image"])
def test_a_copy_is_not_touched(config):
    model, input = PlainCNN().eval(), torch.randn(2, 3, 12, 10)
    plain = model(input)
    disturbed(ns.attach(model, CONFIGS[config]))
    before, copied = model(input), copy.deepcopy(model)
    assert torch.equal(ns.detach(copied)(input), plain)
    assert torch.equal(model(input), before)
    assert not torch.equal(before, plain)
    copied.load_state_dict(copied.state_dict())
    ns.detach(model)
    assert torch.equal(model(input), plain)


def test_layers_built_with_a_similarity():
    model = nn.Sequential(
        ns.nn.StaticConv2d(3, 4, 3),
        ns.nn.DynamicConv2d(4, 4, 3),
        ns.nn.family.Involution2d(4, group_channels=2),
    )
    ns.detach(model)
    assert [type(module) for module in model] == [nn.Conv2d, nn.Conv2d, ns.nn.family.Involution2d]

    class Mine(ns.nn.DynamicConv2d):
        pass

    model = nn.Sequential(Mine(3, 4, 3))
    with pytest.raises(ns.AttachError, match="detach: expected similarities that attach added"):
        ns.detach(model)
    assert type(model[0]) is Mine
    assert model(torch.randn(1, 3, 8, 8)).shape == (1, 4, 6, 6)


class Doubled(nn.Module):
    def forward(self, weight):
        return 2 * weight


def test_what_is_refused():
    plain = nn.Sequential(nn.Conv2d(3, 4, 3))
    with pytest.raises(ns.AttachError, match="detach: expected a model with an attached"):
        ns.detach(plain)
    model = ns.attach(plain, ns.StaticSimilarity(), name="birds")
    with pytest.raises(ns.UnknownNameError, match=r"detach: expected name .*'birds', got 'bird'"):
        ns.detach(model, "bird")
    parametrize.register_parametrization(model[0], "weight", Doubled())
    weight = model[0].weight.clone()
    with pytest.raises(ns.AttachError, match="to have only similarities, got a Doubled"):
        ns.detach(model)
    assert torch.equal(model[0].weight, weight)
    assert ns.list_similarities(model) == ["birds"]


def test_a_transformer_uses_its_fast_path_again():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    ns.attach(layer, ns.DynamicSimilarity(target_modules=["linear1", "linear2"]))
    assert layer.linear1._forward_pre_hooks
    ns.detach(layer)
    assert not layer.linear1._forward_pre_hooks
    assert type(layer.linear1) is nn.Linear
