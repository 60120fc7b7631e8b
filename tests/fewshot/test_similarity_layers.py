"""Few-shot methods put a similarity where the network has it, and nowhere else."""

import pytest
import torch
from support.adapt_cases import EYE

import neural_similarity as ns
from neural_similarity.adapt import FeatureExtractor
from neural_similarity.adapt.methods.static import StaticOptions, late_layers, tuned_part
from neural_similarity.fewshot import create_method
from neural_similarity.nn.inventory import layer_similarities

METHODS = ["static", "meta_static", "dynamic", "meta_dynamic"]


def resnet(similarity=None):
    torch.manual_seed(0)
    return ns.create_model("resnet18", 5, similarity, image_size=33, widths=(4, 4, 6, 8))


def similarity_layers(model):
    return [path for path, module in model.named_modules() if layer_similarities(module)]


@pytest.mark.parametrize("method", METHODS)
def test_the_stem_of_a_resnet_stays_plain(method):
    network = create_method(method).build(resnet(), 5, (3, 33, 33))
    expected = similarity_layers(resnet("static"))
    assert similarity_layers(network.backbone) == expected
    assert len(expected) == 16
    assert "conv1" not in expected
    assert not [path for path in expected if "downsample" in path]


def test_adapting_has_the_same_layers():
    everywhere = similarity_layers(resnet("static"))
    assert late_layers(resnet(), 1.0) == everywhere
    assert late_layers(resnet(), 0.25) == everywhere[-4:]
    assert late_layers(resnet(), 0.0) == everywhere[-1:]


@pytest.mark.parametrize("method", METHODS)
def test_a_similarity_that_is_switched_off_is_named(method):
    backbone = resnet("dynamic" if "dynamic" in method else "static")
    create_method(method).build(backbone, 5, (3, 33, 33))  # an active one is kept
    ns.set_similarity(backbone, None)
    with pytest.raises(ns.AttachError, match=r"got one with 'default' switched off\. Choose"):
        create_method(method).build(backbone, 5, (3, 33, 33))
    with pytest.raises(ns.AttachError, match=r"adapt: expected an active .* 'default' switched"):
        tuned_part(FeatureExtractor(backbone, EYE.preprocessing), StaticOptions())


def test_the_weights_of_the_stem_are_not_parametrized():
    network = create_method("static").build(resnet(), 5, (3, 33, 33))
    stem = resnet().conv1.weight
    assert torch.equal(network.backbone.conv1.weight, stem)
    assert isinstance(network.backbone.conv1.weight, torch.nn.Parameter)
