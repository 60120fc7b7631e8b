"""Merging: equal outputs, stock classes and keys, none of our code left, a check that can fail."""

import copy
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from support.cases import (
    LAYERS,
    SCOPES,
    STRUCTURES,
    disturb,
    half,
    layers,
    output,
    relative_difference,
)
from support.networks import NETWORKS, PlainCNN, train_step
from torch import nn
from torch.nn.utils import parametrize

import neural_similarity as ns
from neural_similarity import structures

BOUND = {torch.float32: 1e-5, torch.float64: 1e-12}


def is_stock(module):
    return all(type(m).__module__.startswith("torch.nn.modules") for m in module.modules())


@pytest.mark.parametrize(("layer", "structure", "scope"), half(LAYERS, STRUCTURES, SCOPES))
def test_every_layer_structure_and_scope(layer, structure, scope):
    module, shape = layers()[layer]
    stock, keys = type(module), list(module.state_dict())
    order = [(name, id(parameter)) for name, parameter in module.named_parameters()]
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
    assert list(module.state_dict()) == keys
    assert [(name, id(parameter)) for name, parameter in module.named_parameters()] == order


@pytest.mark.filterwarnings("ignore::neural_similarity.SkippedLayerWarning")
@pytest.mark.parametrize("dtype", BOUND)
@pytest.mark.parametrize("structure", ["diagonal", "unconstrained", "orthogonal", "kernel_shape"])
@pytest.mark.parametrize("network", NETWORKS)
def test_attach_train_merge(network, structure, dtype):
    make, shape, targets = NETWORKS[network]
    model = make().to(dtype)
    stock_keys = list(model.state_dict())
    identities = [id(p) for p in model.parameters()]
    ns.attach(model, ns.StaticSimilarity(structure, target_modules=targets))
    input = torch.randn(shape, dtype=dtype)
    base = model.eval()(input)
    train_step(model.train(), input)
    before = model.eval()(input)
    assert relative_difference(before, base) > 1e-3, "training did nothing"
    moved = [p for p in ns.similarity_parameters(model) if p.grad.abs().max() > 0]
    assert moved, "the similarity received no gradient"

    state = ns.effective_state_dict(model)
    assert list(state) == stock_keys
    merged = ns.merge(model)
    assert merged is model
    assert relative_difference(model(input), before) <= BOUND[dtype]
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    assert [id(p) for p in model.parameters()] == identities
    assert list(model.state_dict()) == stock_keys
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

    def starts_at_identity(self, block):
        return False


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


class Scaled(nn.Conv2d):
    """A convolution with a parameter and a child of its own."""

    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.norm = nn.BatchNorm2d(sizes[1])
        self.gain = nn.Parameter(torch.ones(sizes[1], 1, 1))

    def forward(self, input):
        return self.norm(super().forward(input)) * self.gain


def test_an_optimiser_continues_on_the_same_parameters():
    """Its saved state goes by the order of parameters."""

    def network():
        torch.manual_seed(0)
        return nn.Sequential(Scaled(3, 4, 3), nn.Conv2d(4, 3, 3), nn.Flatten(), nn.Linear(48, 4))

    plain, model = network(), network()
    keys = list(model.state_dict())
    ns.attach(model, ns.StaticSimilarity())
    disturb(model)
    assert list(ns.effective_state_dict(model)) == keys
    ns.merge(model)
    assert list(model.state_dict()) == keys
    optimiser = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    plain(torch.randn(2, 3, 8, 8)).square().sum().backward()
    optimiser.step()
    continued = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    continued.load_state_dict(optimiser.state_dict())
    for (name, ours), theirs in zip(model.named_parameters(), plain.parameters(), strict=True):
        momentum = continued.state[ours]["momentum_buffer"]
        assert torch.equal(momentum, optimiser.state[theirs]["momentum_buffer"]), name


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
def test_half_precision_follows_double(structure, dtype):
    conv = nn.Conv2d(4, 6, (3, 5)).to(dtype)
    model = ns.attach(nn.Sequential(conv), ns.StaticSimilarity(STRUCTURES[structure]))
    disturb(model)
    exact = copy.deepcopy(model).double()
    input = torch.randn(2, 4, 6, 8, dtype=dtype)
    truth, before = exact(input.double()), model(input)
    assert before.dtype == dtype
    # Rounding M, the mixed kernel and the output: a few units in the last place, as M may cancel.
    assert relative_difference(before.double(), truth) <= 8 * torch.finfo(dtype).eps
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


def test_channels_last_in_three_dimensions():
    conv = nn.Conv3d(2, 4, 3).to(memory_format=torch.channels_last_3d)
    ns.merge(ns.attach(conv, ns.StaticSimilarity("unconstrained")))
    assert conv.weight.is_contiguous(memory_format=torch.channels_last_3d)


def test_what_was_frozen_stays_frozen():
    model = ns.attach(PlainCNN(), ns.StaticSimilarity())
    ns.freeze_backbone(model)
    ns.merge(model)
    trained = {n for n, p in model.named_parameters() if p.requires_grad}
    assert trained == {"classifier.weight", "classifier.bias"}


def test_hooks_that_hold_activations_do_not_disturb():
    class Recorder:
        def hook(self, module, args, output):
            self.activation = output

    model, recorder = ns.attach(PlainCNN(), ns.StaticSimilarity()), Recorder()
    model.features[0].register_forward_hook(recorder.hook)
    model(torch.randn(2, 3, 12, 10))
    ns.merge(model)
    assert type(model.features[0]) is nn.Conv2d


def test_a_stale_cached_weight_is_not_merged():
    model, input = ns.attach(PlainCNN(), ns.StaticSimilarity()).eval(), torch.randn(2, 3, 12, 10)
    with parametrize.cached():
        model(input)
        disturb(model)
        state = ns.effective_state_dict(model)
        with pytest.raises(ns.MergeError, match="unchanged"):
            ns.merge(model)
    plain = PlainCNN().eval()
    plain.load_state_dict(state)
    assert torch.equal(plain(input), ns.merge(model)(input))


def test_shared_modules_and_odd_names():
    conv = nn.Conv2d(3, 3, 3)
    model = nn.ModuleDict({"my_parametrizations": nn.Sequential(conv, nn.ReLU(), conv)})
    keys = set(model.state_dict())
    ns.attach(model, ns.StaticSimilarity())
    disturb(model)
    state = ns.effective_state_dict(model)
    assert set(state) == keys
    ns.merge(model)
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())
    assert ns.merge(model["my_parametrizations"]), "a part of what was merged is merged"


def test_parametrizations_of_others_on_other_tensors_stay():
    model = nn.Sequential(nn.Conv2d(3, 4, 3))
    parametrize.register_parametrization(model[0], "bias", nn.Tanh())
    ns.attach(model, ns.StaticSimilarity())
    disturb(model)
    input = torch.randn(1, 3, 8, 8)
    before = model(input)
    assert set(ns.effective_state_dict(model)) == {"0.weight", "0.parametrizations.bias.original"}
    torch.testing.assert_close(ns.merge(model)(input), before)
    assert parametrize.is_parametrized(model[0], "bias")


@pytest.mark.parametrize(
    "options",
    [
        {"structure": "attention"},
        {"structure": "unconstrained", "size": 6},
        {"structure": "diagonal", "size": (5, 9)},
        {"structure": "diagonal", "predictor": ns.SpherePredictor(hidden=2)},
    ],
    ids=["attention", "matrix", "mask", "predicted mask"],
)
def test_a_global_similarity_stays(options):
    layer = ns.nn.GlobalSimilarityConv2d(3, 4, 3, **options)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.5)
    model = ns.attach(nn.Sequential(layer), ns.StaticSimilarity(target_modules=["0"]))
    disturb(model)
    input = torch.randn(2, 3, *getattr(layer.similarity, "size", (6, 6)))
    before = model.eval()(input)
    torch.testing.assert_close(ns.merge(model.train()).eval()(input), before)
    assert type(model[0]) is ns.nn.GlobalSimilarityConv2d
    assert isinstance(model[0].weight, nn.Parameter)


def test_a_subclass_stays_what_it_is():
    class Doubled(ns.nn.StaticConv2d):
        def forward(self, input):
            return 2 * super().forward(input)

    model = nn.Sequential(Doubled(3, 4, 3))
    disturb(model)
    input = torch.randn(1, 3, 8, 8)
    before = model(input)
    torch.testing.assert_close(ns.merge(model)(input), before)
    assert type(model[0]) is Doubled


def test_norms_inside_a_layer_learn_nothing_from_the_check():
    class NormedConv(nn.Conv2d):
        def __init__(self, *sizes):
            super().__init__(*sizes)
            self.norm = nn.BatchNorm2d(sizes[1])

        def forward(self, input):
            return self.norm(super().forward(input))

    model = ns.attach(nn.Sequential(NormedConv(3, 4, 3)), ns.StaticSimilarity())
    ns.merge(model.train())
    assert model[0].norm.num_batches_tracked == 0
    assert model[0].norm.training


def test_removal_by_pytorchs_own_means():
    conv = ns.attach(nn.Conv2d(3, 4, 3), ns.StaticSimilarity())
    parametrize.remove_parametrizations(conv, "weight")
    conv.load_state_dict(nn.Conv2d(3, 4, 3).state_dict())


class Odd(nn.Conv2d):
    def forward(self, input, more):
        return super().forward(input + more)


def test_a_layer_that_cannot_be_checked_is_not_merged():
    model = ns.attach(nn.Sequential(Odd(3, 4, 3)), ns.StaticSimilarity())
    with pytest.raises(ns.MergeError, match=r"layer '0' to run on a random input.*is unchanged"):
        ns.merge(model)
    assert len(list(ns.similarity_parameters(model))) == 1
