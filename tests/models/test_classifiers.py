"""Networks without a classifier, and networks whose classifier is replaced."""

import pytest
import torch
from support.networks import small_model
from torch import nn

import neural_similarity as ns


def classifier_input(model, images):
    """What the classifier reads, seen by a hook."""
    inputs = []
    hook = model.get_classifier().register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
    model(images)
    hook.remove()
    return inputs[0]


@pytest.mark.parametrize("similarity", [None, "static"])
@pytest.mark.parametrize("name", ns.list_models())
def test_no_classes_means_features(name, similarity):
    model, images = small_model(name, similarity)
    model.eval()
    expected = classifier_input(model, images)
    features, _ = small_model(name, similarity, num_classes=0)
    features.eval()
    result = features.load_state_dict(model.state_dict(), strict=False)
    own = {f"{model.classifier_name}.{key}" for key in model.get_classifier().state_dict()}
    assert not result.missing_keys
    assert set(result.unexpected_keys) == own
    assert torch.equal(features(images), expected)
    assert expected.shape == (8, features.num_features)
    assert isinstance(features.get_classifier(), nn.Identity)
    assert (features.num_classes, model.num_classes) == (0, 5)


@pytest.mark.parametrize("name", ns.list_models())
def test_the_classifier_can_be_removed_and_replaced(name):
    model, images = small_model(name)
    model.eval()
    expected = classifier_input(model, images)
    model.reset_classifier(0)
    assert torch.equal(model(images), expected)
    model.reset_classifier(7)
    assert model(images).shape == (8, 7)
    assert model.get_classifier()(expected).dtype == torch.float64
    assert not any(module.training for module in model.modules())
    assert type(model.get_classifier()) is type(small_model(name)[0].get_classifier())
    with pytest.raises(ns.ShapeError, match=r"reset_classifier: expected num_classes .* got -1"):
        model.reset_classifier(-1)
