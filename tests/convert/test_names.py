"""Several similarities on one model: one is active, they switch, and the plain network is exact."""

import copy

import pytest
import torch
from support.cases import LAYERS, STRUCTURES, disturb, layers, output
from support.fast_cases import torch_warns_about_itself
from support.networks import PlainCNN, train_step
from torch import nn
from torch.nn.utils import parametrize

import neural_similarity as ns
from neural_similarity.convert import describe_layers, multiply_adds
from neural_similarity.nn.inventory import named_similarities

SHAPE = (2, 3, 12, 10)
SMALL = ns.SpherePredictor(hidden=4)
CONFIGS = {
    "static": lambda: ns.StaticSimilarity("diagonal"),
    "static matrix": lambda: ns.StaticSimilarity("unconstrained", "channel"),
    "dynamic": lambda: ns.DynamicSimilarity("diagonal", SMALL),
    "dynamic matrix": lambda: ns.DynamicSimilarity("kernel_shape", SMALL, shared=True),
}
KINDS = ("static", "dynamic")


def three(kind="static", tasks=("birds", "cars", "default"), seed=0):
    """A network with a similarity of its own for each task, and the plain network."""
    torch.manual_seed(seed)
    plain = PlainCNN().eval()
    model = copy.deepcopy(plain)
    for task in tasks:
        ns.attach(model, CONFIGS[kind if task != "cars" else f"{kind} matrix"](), name=task)
        disturb(model)
    return model.eval(), plain


def outputs(model, input, tasks=("birds", "cars", "default", None)):
    return {task: ns.set_similarity(model, task)(input).detach() for task in tasks}


@pytest.mark.parametrize("kind", KINDS)
def test_one_is_active_and_none_is_the_plain_network(kind):
    model, plain = three(kind)
    input = torch.randn(SHAPE)
    assert ns.list_similarities(model) == ["birds", "cars", "default"]
    assert ns.active_similarity(model) == "default", "the last one attached"
    results = outputs(model, input)
    assert ns.active_similarity(model) is None
    assert torch.equal(results[None], plain(input))
    different = [results[task] for task in ("birds", "cars", "default", None)]
    assert all(not torch.allclose(a, b) for i, a in enumerate(different) for b in different[:i])
    for task in ("cars", "birds", "cars"):
        assert torch.equal(outputs(model, input, [task])[task], results[task])


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("layer", LAYERS)
def test_a_named_similarity_on_every_layer_is_the_same_as_the_only_one(layer, structure):
    alone, shape = layers()[layer]
    alone.eval()
    several, input = copy.deepcopy(alone), torch.randn(shape)
    before = output(alone, input)
    config = ns.StaticSimilarity(STRUCTURES[structure], target_modules=".*")
    ns.attach(alone, config)
    ns.attach(several, ns.StaticSimilarity("unconstrained", target_modules=".*"), name="a")
    disturb(several)
    ns.attach(several, config, name="b")
    torch.manual_seed(1)
    disturb(alone)
    torch.manual_seed(1)
    disturb(several)
    assert torch.equal(output(several, input), output(alone, input))
    assert not torch.equal(output(several, input), before)
    assert torch.equal(output(ns.set_similarity(several, None), input), before)


@pytest.mark.parametrize("layer", ["conv1d", "conv2d", "linear", "lstm_cell"])
def test_dynamic_layers_of_every_kind(layer):
    plain, shape = layers()[layer]
    plain.eval()
    if layer == "conv1d":
        plain, shape = nn.Conv1d(4, 6, 5, stride=2, padding=1), (2, 4, 11)
    module, input = copy.deepcopy(plain), torch.randn(shape)
    config = ns.DynamicSimilarity(predictor=SMALL, target_modules=".*")
    ns.attach(module, config, name="birds")
    disturb(module)
    module.eval()
    birds = output(module, input)
    ns.attach(module, config)
    disturb(module)
    module.eval()
    assert torch.equal(output(ns.set_similarity(module, "birds"), input), birds)
    assert not torch.allclose(output(ns.set_similarity(module, "default"), input), birds)
    assert torch.equal(output(ns.set_similarity(module, None), input), output(plain, input))
    copied = copy.deepcopy(ns.set_similarity(module, "birds"))
    ns.set_similarity(module, None)
    assert torch.equal(output(copied, input), birds)
    if layer == "conv2d":
        with pytest.raises(ns.AttachError, match="DynamicConv2d: expected an active similarity"):
            module.similarity(input)


@pytest.mark.parametrize("kind", KINDS)
def test_the_default_alone_has_the_keys_it_always_had(kind):
    model = ns.attach(PlainCNN(), CONFIGS[kind]())
    own = {
        "static": {
            "parametrizations.weight.original",
            "parametrizations.weight.0.numbers.diagonal",
        },
        "dynamic": {
            "weight",
            *(f"predictor.network.{layer}.weight" for layer in ("first", "last")),
            *(
                f"predictor.network.{norm}_norm.{key}"
                for norm in ("first", "last")
                for key in ["weight", "bias", "running_mean", "running_var", "num_batches_tracked"]
            ),
        },
    }[kind]
    keys = {key for key in model.state_dict() if key.startswith("features.0.")}
    assert keys == {f"features.0.{key}" for key in own}


@pytest.mark.parametrize("kind", KINDS)
def test_state_dicts_do_not_depend_on_the_order_and_carry_the_names(kind):
    model, _ = three(kind)
    other, _ = three(kind, tasks=("default", "cars", "birds"), seed=5)
    assert sorted(other.state_dict()) == sorted(model.state_dict())
    if kind == "static":
        assert list(other.state_dict()) == list(model.state_dict())
    other.load_state_dict(model.state_dict())
    input = torch.randn(SHAPE)
    expected = outputs(model, input)
    for task, result in outputs(other, input).items():
        assert torch.equal(result, expected[task])
    swapped = PlainCNN()
    for task in ("birds", "dogs", "default"):
        ns.attach(swapped, CONFIGS[kind](), name=task)
    with pytest.raises(RuntimeError, match=r"Missing key.*dogs"):
        swapped.load_state_dict(model.state_dict())
    plain = PlainCNN()
    model.load_state_dict(plain.state_dict())  # a stock checkpoint leaves all of them alone
    assert torch.equal(ns.set_similarity(model, None)(input), plain.eval()(input))


def flags(model):
    return {name: parameter.requires_grad for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("kind", KINDS)
def test_training_touches_the_active_one_alone(kind):
    model, _ = three(kind)
    ns.set_similarity(model, "birds")
    summary = ns.freeze_backbone(model)
    own = {id(p) for p in ns.similarity_parameters(model)}
    before = {name: p.clone() for name, p in model.named_parameters()}
    trained = {n for n, p in model.named_parameters() if p.requires_grad}
    classifier = {"classifier.weight", "classifier.bias"}
    assert trained == {n for n, p in model.named_parameters() if id(p) in own} | classifier
    assert all("birds" in name for name in trained - classifier)
    assert summary.similarity == sum(p.numel() for p in ns.similarity_parameters(model))
    train_step(model.train(), torch.randn(5, *SHAPE[1:]))
    changed = {n for n, p in model.named_parameters() if not torch.equal(p, before[n])}
    assert changed <= trained
    assert changed - classifier
    before = flags(model)
    ns.set_similarity(model, "cars")
    assert flags(model) == before


def test_counting_and_describing_the_active_one():
    model, plain = three("static")
    total = sum(p.numel() for p in plain.parameters())
    diagonal, channels = 9 + 9 + 15, 3 * 81 + 6 * 81 + 8 * 225
    summary = ns.trainable_summary(ns.set_similarity(model, "birds"))
    assert summary.similarity == diagonal
    assert summary.total == total + 2 * diagonal + channels
    assert summary.deployed == total
    described = describe_layers(ns.set_similarity(model, "cars"), torch.randn(SHAPE))
    assert [layer.similarity for layer in described[:3]] == ["static unconstrained, channel"] * 3
    assert sum(layer.similarity_numbers for layer in described) == channels
    penalty = ns.similarity_penalty(model, l2=1.0)
    assert not torch.equal(penalty, ns.similarity_penalty(ns.set_similarity(model, "birds"), l2=1))
    ns.set_similarity(model, None)
    assert not list(ns.similarity_parameters(model))
    assert not list(named_similarities(model))
    with pytest.raises(ns.AttachError, match=r"freeze_backbone: .* Call attach or set_similarity"):
        ns.freeze_backbone(model)
    with pytest.raises(
        ns.AttachError, match=r"similarity_penalty: .* Call attach or set_similarity"
    ):
        ns.similarity_penalty(model)


def test_a_dynamic_layer_without_active_similarity_costs_as_much_as_a_plain_one():
    model, plain = three("dynamic")
    image = torch.randn(1, *SHAPE[1:])
    assert multiply_adds(model, image) != multiply_adds(plain, image)
    assert multiply_adds(ns.set_similarity(model, None), image) == multiply_adds(plain, image)
    described = describe_layers(ns.set_similarity(model, "birds"), torch.randn(SHAPE))
    assert [layer.similarity for layer in described[:3]] == ["dynamic diagonal"] * 3
    assert all(layer.distance > 0 for layer in described[:3])


def test_layers_without_the_name_are_plain():
    torch.manual_seed(0)
    plain = PlainCNN().eval()
    model, input = copy.deepcopy(plain), torch.randn(SHAPE)
    ns.attach(model, ns.StaticSimilarity(target_modules=["0"]), name="birds")
    ns.attach(model, ns.DynamicSimilarity(predictor=SMALL, target_modules=["3"]), name="cars")
    ns.attach(model, ns.StaticSimilarity(target_modules=["6"]), name="cars")
    disturb(ns.set_similarity(model, "birds"))
    disturb(ns.set_similarity(model, "cars"))
    model.eval()
    assert [name for name, _ in named_similarities(model)] == [
        "features.3.predictor", "features.6.weight",
    ]  # fmt: skip
    assert torch.equal(model.features[:3](input), plain.features[:3](input))
    ns.set_similarity(model, "birds")
    assert not torch.equal(model.features[:3](input), plain.features[:3](input))
    middle = model.features[:3](input)
    assert torch.equal(model.features[3:](middle), plain.features[3:](middle))


@pytest.mark.parametrize("kind", KINDS)
def test_a_context_without_similarity(kind):
    model, plain = three(kind)
    input = torch.randn(SHAPE)
    before, expected = model(input), plain(input)
    with ns.without_similarity(model) as within:
        assert within is model
        assert torch.equal(model(input), expected)
        with ns.without_similarity(model):
            assert torch.equal(model(input), expected)
        assert torch.equal(model(input), expected), "the inner context restores the outer one"
    assert torch.equal(model(input), before)
    with pytest.raises(ZeroDivisionError), ns.without_similarity(model):
        1 / 0  # noqa: B018
    assert torch.equal(model(input), before)
    with ns.without_similarity(model):
        ns.set_similarity(model, "birds")
    assert ns.active_similarity(model) == "default"
    with ns.without_similarity(plain):
        assert torch.equal(plain(input), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_copies_switch_for_themselves(kind):
    model, _ = three(kind)
    input = torch.randn(SHAPE)
    expected = outputs(model, input)
    copied = copy.deepcopy(model)
    ns.set_similarity(model, "birds")
    ns.set_similarity(copied, "cars")
    assert torch.equal(model(input), expected["birds"])
    assert torch.equal(copied(input), expected["cars"])


def test_merging_the_active_one_leaves_nothing_of_the_others():
    model, plain = three("static")
    input = torch.randn(SHAPE)
    expected = outputs(model, input)
    keys = list(plain.state_dict())
    for task in ("birds", "cars", "default"):
        merged = copy.deepcopy(ns.set_similarity(model, task))
        assert list(ns.effective_state_dict(merged)) == keys
        ns.merge(merged)
        torch.testing.assert_close(merged(input), expected[task])
        assert [type(m) for m in merged.modules()] == [type(m) for m in plain.modules()]
        assert list(merged.state_dict()) == keys
        assert not any(m._load_state_dict_pre_hooks for m in merged.modules())
    with pytest.raises(ns.MergeError, match="got none of 'birds', 'cars', 'default' active"):
        ns.merge(ns.set_similarity(model, None))
    assert ns.list_similarities(model) == ["birds", "cars", "default"]


def test_names_that_do_not_fit():
    model, plain = three("static")
    with pytest.raises(
        ns.UnknownNameError, match=r"set_similarity: .*'birds', 'cars', 'default', got"
    ):
        ns.set_similarity(model, "bird")
    with pytest.raises(ns.AttachError, match="set_similarity: expected a model with an attached"):
        ns.set_similarity(plain, "birds")
    assert ns.set_similarity(plain, None) is plain
    state = list(model.state_dict())
    with pytest.raises(
        ns.AttachError, match=r"without a similarity named 'birds', got layer 'features.0', which"
    ):
        ns.attach(model, ns.StaticSimilarity(), name="birds")
    with pytest.raises(ns.AttachError, match=r"layer 'features.0', which has a static similarity"):
        ns.attach(model, ns.DynamicSimilarity(), name="new")
    dynamic, _ = three("dynamic")
    with pytest.raises(ns.AttachError, match=r"layer 'features.0', which has a dynamic similarity"):
        ns.attach(dynamic, ns.StaticSimilarity(), name="new")
    assert list(model.state_dict()) == state
    assert ns.active_similarity(model) == "default"
    parts = nn.Sequential(nn.Conv2d(3, 3, 3), nn.Conv2d(3, 3, 3))
    ns.attach(parts[0], ns.StaticSimilarity(), name="a")
    ns.attach(parts[1], ns.StaticSimilarity(), name="b")
    with pytest.raises(ns.AttachError, match=r"got '[ab]', '[ab]' in different parts"):
        ns.active_similarity(parts)


@pytest.mark.slow
@torch_warns_about_itself
@pytest.mark.parametrize("kind", KINDS)
def test_a_compiled_network_switches(kind):
    torch.compiler.reset()
    model, _ = three(kind)
    input = torch.randn(SHAPE)
    expected = outputs(model, input)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for task in ("birds", "cars", None, "birds", "default"):
        ns.set_similarity(compiled, task)
        torch.testing.assert_close(compiled(input), expected[task], rtol=1e-4, atol=1e-5)


def test_a_named_similarity_exports():
    for kind in KINDS:
        model, _ = three(kind)
        input = torch.randn(SHAPE)
        program = torch.export.export(ns.set_similarity(model, "birds"), (input,))
        torch.testing.assert_close(program.module()(input), model(input), rtol=1e-4, atol=1e-5)


def test_switching_within_a_cache_of_weights():
    model = nn.Sequential(nn.Conv2d(3, 4, 3))
    image = torch.randn(1, 3, 6, 6)
    plain = model(image)
    ns.attach(model, ns.StaticSimilarity())
    nn.init.normal_(next(ns.similarity_parameters(model)))
    with parametrize.cached():
        assert not torch.equal(model(image), plain)
        ns.set_similarity(model, None)
        assert torch.equal(model(image), plain)
