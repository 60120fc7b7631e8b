"""Where similarities go in the named networks, which start out as the plain ones."""

import re
from functools import partial
from pathlib import Path

import pytest
import torch
from support.cases import disturb
from support.networks import small_model
from torch import nn

import neural_similarity as ns
from neural_similarity.nn.inventory import layer_similarities

LAYERS_OF_THE_PAPER = {"cnn4": 4, "cnn9": 9, "cnn9_root": 9, "cnn10": 9, "cnn9_wide": 9}


TINY_PREDICTOR = ns.DynamicSimilarity(predictor=ns.SpherePredictor(hidden=4))


def with_similarity(model):
    return [path for path, module in model.named_modules() if layer_similarities(module)]


def chosen_layers(model):
    """The convolutions that the network wants a similarity on."""
    return [
        path
        for path, module in model.named_modules()
        if isinstance(module, nn.Conv2d) and re.fullmatch(model.similarity_layers, path)
    ]


@pytest.mark.parametrize("name", LAYERS_OF_THE_PAPER)
def test_a_similarity_is_where_the_paper_has_it(name):
    model, _ = small_model(name, "static")
    assert len(with_similarity(model)) == LAYERS_OF_THE_PAPER[name]


@pytest.mark.parametrize("name", ["cnn9", "cnn10"])
def test_the_document_tells_what_a_similarity_adds(name):
    document = (Path(__file__).parents[2] / "docs" / "models.md").read_text()
    (row,) = re.findall(rf"^\| `{name}` \| ([\d,]+(?: \| [\d,]+)+) \|$", document, re.MULTILINE)
    configurations = (
        ns.StaticSimilarity("diagonal"),
        ns.StaticSimilarity("unconstrained"),
        ns.DynamicSimilarity(predictor=ns.SpherePredictor(hidden=32)),
        ns.DynamicSimilarity("diagonal"),
        ns.DynamicSimilarity("unconstrained"),
    )
    added = [
        ns.trainable_summary(ns.create_model(name, similarity=config)).similarity
        for config in configurations
    ]
    assert [int(cell.replace(",", "")) for cell in row.split(" | ")] == added


@pytest.mark.parametrize("name", ns.list_models())
def test_static_similarity_starts_plain_and_merges_to_stock_keys(name):
    plain, images = small_model(name)
    model, _ = small_model(name, "static")
    assert with_similarity(model) == chosen_layers(plain) != []
    torch.testing.assert_close(model(images), plain(images))
    disturb(model)
    disturbed = model(images)
    assert not torch.allclose(disturbed, plain(images), rtol=1e-2)
    ns.merge(model)
    assert list(model.state_dict()) == list(plain.state_dict())
    torch.testing.assert_close(model(images), disturbed)


@pytest.mark.parametrize("name", ns.list_models())
def test_dynamic_similarity_starts_plain(name):
    plain, images = small_model(name)
    if any(isinstance(m, ns.nn.SphereConv2d) for m in plain.modules()):
        with pytest.raises(ns.AttachError, match="SphereConv2d"):  # it compares directions
            small_model(name, TINY_PREDICTOR)
        return
    model, _ = small_model(name, TINY_PREDICTOR)
    assert with_similarity(model) == chosen_layers(plain) != []
    for key, tensor in plain.state_dict().items():
        assert torch.equal(model.state_dict()[key], tensor), key
    torch.testing.assert_close(model(images), plain(images))
    disturb(model)
    assert not torch.allclose(model(images), plain(images), rtol=1e-2)


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("cnn9_root", ["stem.0", "classifier.1"]),
        ("cnn10", ["stem.0"]),
        ("resnet18", ["conv1", "layer2.0.downsample.0"]),
        ("cnn9_wide", ["fc"]),
    ],
)
def test_roots_heads_and_shortcuts_stay_plain(name, kept):
    model, _ = small_model(name, "static")
    for path in kept:
        layer = model.get_submodule(path)
        assert isinstance(layer, nn.Conv2d)
        assert not layer_similarities(layer)


def test_a_head_of_nine_taps_is_not_taken_for_a_layer_of_the_network():
    model = ns.create_model("cnn9_root", similarity="static", image_size=24, width=4)
    assert model.get_classifier()[1].kernel_size == (3, 3)
    assert not layer_similarities(model.get_classifier()[1])


@pytest.mark.parametrize("none", [None, "none"])
def test_no_similarity(none):
    model, _ = small_model("cnn9", none)
    assert not any(layer_similarities(m) for m in model.modules())


def test_a_configuration_may_choose_layers_itself():
    chosen = ns.StaticSimilarity(target_modules=["stem.0"])
    model, _ = small_model("cnn9_root", chosen)
    assert [n for n, m in model.named_modules() if layer_similarities(m)] == ["stem.0"]
    model, _ = small_model("cnn9_root", ns.StaticSimilarity(target_modules="all-conv"))
    assert layer_similarities(model.get_submodule("stem.0")), "what is explicit wins"
    but_first = ns.StaticSimilarity(exclude_modules=["stages.0.0"])
    model, _ = small_model("cnn9", but_first)
    assert sum(bool(layer_similarities(m)) for m in model.modules()) == 8


UNCONSTRAINED = partial(
    ns.nn.DynamicConv2d, structure="unconstrained", predictor=TINY_PREDICTOR.predictor
)


@pytest.mark.parametrize("name", ["cnn9", "cnn9_root", "cnn10", "resnet18", "resnet_cifar"])
@pytest.mark.parametrize("conv_layer", [UNCONSTRAINED, ns.nn.StaticConv2d])
def test_conv_layer_makes_the_layers_that_take_a_similarity(name, conv_layer):
    made, images = small_model(name, conv_layer=conv_layer)
    plain, _ = small_model(name)
    assert with_similarity(made) == chosen_layers(plain)
    made.load_state_dict(plain.state_dict())
    torch.testing.assert_close(made(images), plain(images))


def test_every_layer_of_appendix_b_is_of_one_kind():
    model, _ = small_model("cnn9_wide_attention", conv_layer=ns.nn.SphereConv2d)
    kinds = {type(m) for m in model.modules() if isinstance(m, nn.Conv2d)}
    assert kinds == {ns.nn.SphereConv2d}


@pytest.mark.parametrize("name", ["cnn9_root", "resnet_cifar"])
def test_he_initialisation_reaches_below_a_static_similarity(name):
    plain, _ = small_model(name)
    made, _ = small_model(name, conv_layer=ns.nn.StaticConv2d)
    for path, layer in made.named_modules():
        if layer_similarities(layer):
            assert torch.equal(layer.weight, plain.get_submodule(path).weight)
