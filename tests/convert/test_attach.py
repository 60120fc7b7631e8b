"""Attaching: which layers get a similarity, however they are named; wrong requests are refused."""

import warnings
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from support.fast_cases import torch_warns_about_itself
from support.networks import PlainCNN, ResNet
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune

import neural_similarity as ns
from neural_similarity.nn.inventory import layer_similarities, named_similarities


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


def state(model):
    return {name: (type(m), tuple(m._parameters)) for name, m in model.named_modules()}


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (
            nn.Sequential(nn.Linear(3, 3)),
            {},
            r"got none\. Layers here that can have a similarity: Linear",
        ),
        (nn.Sequential(nn.ReLU()), {}, r"can have a similarity: none"),
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


@pytest.mark.parametrize("config", [ns.StaticSimilarity(), ns.DynamicSimilarity()])
@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn, torch.complex64])
def test_weights_of_other_types_are_refused_and_nothing_changes(config, dtype):
    model = nn.Sequential(nn.Conv2d(4, 6, 3), nn.Conv2d(6, 6, 3))
    model[1].weight = nn.Parameter(torch.ones(6, 6, 3, 3).to(dtype), requires_grad=False)
    before = state(model)
    with pytest.raises(ns.AttachError, match=rf"got {dtype} in layer '1'\. Attach before"):
        ns.attach(model, config)
    assert state(model) == before


@pytest.mark.parametrize("pattern", ["layer[", None, 3])
def test_a_choice_of_the_network_that_makes_no_sense_is_named(pattern):
    model = PlainCNN()
    model.similarity_layers = pattern
    with pytest.raises(ns.AttachError, match=r"PlainCNN\.similarity_layers to be a regular expr"):
        attach(model)


def test_attaching_twice_is_refused_and_changes_nothing():
    model = PlainCNN()
    attach(model, target_modules=["0"])
    before = state(model)
    with pytest.raises(ns.AttachError, match=r"got layer 'features.0', which already has one. D"):
        attach(model)
    assert state(model) == before
    assert attach(model, exclude_modules=["0"]) == ["features.0", "features.3", "features.6"]


def test_foreign_parametrizations_are_refused():
    model = nn.Sequential(parametrizations.weight_norm(nn.Conv2d(3, 4, 3)))
    with pytest.raises(
        ns.AttachError, match="0: expected a plain weight, got one with another parametrization"
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
            r"regular expression .*pass a list: \['\*conv'\]",
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


def test_a_structure_that_does_not_start_at_the_identity_must_say_so():
    @dataclass(frozen=True)
    class Half(ns.structures.Diagonal):
        name: ClassVar[str] = "half"
        honest: bool = False

        def initial(self, block):
            return {"gains": torch.full((block.size,), 0.5)}

        def similarity(self, numbers, block):
            return numbers["gains"]

        def starts_at_identity(self, block):
            return not self.honest

    model = nn.Sequential(nn.Conv2d(3, 4, 3))
    with pytest.raises(ns.AttachError, match="'half' to start at the identity, got another M"):
        ns.attach(model, ns.StaticSimilarity(Half()))
    assert type(model[0]) is nn.Conv2d
    ns.attach(model, ns.StaticSimilarity(Half(honest=True)))


@pytest.mark.parametrize("name", ["half", "a.b", "training"])
def test_parameters_whose_names_modules_use_are_refused(name):
    @dataclass(frozen=True)
    class Named(ns.structures.Diagonal):
        def initial(self, block):
            return {name: torch.ones(block.size)}

    with pytest.raises(ns.AttachError, match=rf"names of parameters .*, got '{name}'\."):
        ns.attach(nn.Sequential(nn.Conv2d(3, 4, 3)), ns.StaticSimilarity(Named()))
