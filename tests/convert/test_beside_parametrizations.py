"""Similarities beside other people's parametrizations, pruning, copies and lazy layers."""

from __future__ import annotations

import copy

import pytest
import torch
from safetensors.torch import save_file
from support.cases import disturb
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune

import neural_similarity as ns

PREDICTED = ns.DynamicSimilarity(predictor=ns.ImagePredictor(hidden=2))
IMAGE = torch.randn(2, 3, 8, 8)


def small() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, 4, 3))


def weight_norm_of_bias(model: nn.Sequential) -> nn.Sequential:
    parametrizations.weight_norm(model[0], "bias", dim=None)
    return model


def test_detach_leaves_pytorchs_own_class_alone():
    model = weight_norm_of_bias(small())
    before = model(IMAGE)
    for name in ("a", "b"):
        ns.attach(model, ns.StaticSimilarity(), name=name)
    ns.detach(model, "a")
    assert "weight" not in vars(nn.Conv2d)
    assert ns.list_similarities(model) == ["b"]
    torch.testing.assert_close(model(IMAGE), before)
    prune.l1_unstructured(nn.Conv2d(3, 4, 3), "weight", 0.5)


def test_attaching_to_a_copy_leaves_the_original_alone():
    model = weight_norm_of_bias(small())
    before = model(IMAGE)
    disturb(ns.attach(copy.deepcopy(model), ns.StaticSimilarity()))
    assert torch.equal(model(IMAGE), before)


@pytest.mark.parametrize("scope", ["layer", "channel", "kernel", "full"])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("kind", [nn.Conv2d, nn.ConvTranspose2d])
def test_merged_weights_lie_in_memory_as_before(kind, memory_format, scope, tmp_path):
    model = nn.Sequential(kind(4, 6, (3, 2))).to(memory_format=memory_format)
    stride = model[0].weight.stride()
    disturb(ns.attach(model, ns.StaticSimilarity("unconstrained", scope=scope)))
    assert ns.effective_state_dict(model)["0.weight"].stride() == stride
    ns.merge(model)
    assert model[0].weight.stride() == stride
    if memory_format is torch.contiguous_format:
        save_file(model.state_dict(), tmp_path / "merged.safetensors")


def test_assigned_weights_lie_in_memory_as_the_tensor():
    model = small()
    disturb(ns.attach(model, ns.StaticSimilarity("unconstrained", scope="channel")))
    model[0].weight = torch.randn(4, 3, 3, 3)
    assert model[0].parametrizations.weight.original.is_contiguous()


def test_merge_under_spectral_norm_in_training_mode():
    """Its power iteration moves buffers in training, and so would change what is merged."""
    model = ns.attach(small(), ns.StaticSimilarity())
    parametrizations.spectral_norm(model[0])
    model(IMAGE)
    with torch.no_grad():
        model[0].parametrizations.weight.original.add_(torch.randn(4, 3, 3, 3))
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    ns.effective_state_dict(model)
    for name, buffer in model.named_buffers():
        assert torch.equal(buffer, buffers[name]), name
    assert model.training
    expected = model.eval()(IMAGE)
    ns.merge(model.train())
    torch.testing.assert_close(model.eval()(IMAGE), expected)


def test_detach_refuses_a_dynamic_layer_below_a_parametrization():
    model = ns.attach(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3)), PREDICTED)
    parametrizations.weight_norm(model[0])
    with pytest.raises(ns.AttachError, match=r"detach: expected dynamic layer '0' without para"):
        ns.detach(model)
    assert all(isinstance(layer, ns.nn.DynamicConv2d) for layer in model)


def test_a_second_predictor_below_weight_norm():
    model = ns.attach(nn.Sequential(nn.Conv2d(3, 4, 3, bias=False)), PREDICTED)
    parametrizations.weight_norm(model[0])
    ns.attach(model, PREDICTED, name="b")
    assert ns.list_similarities(model) == ["b", "default"]
    assert model(IMAGE).shape == (2, 4, 6, 6)


@pytest.mark.parametrize("first", [True, False], ids=["first", "second"])
def test_a_name_that_the_layer_uses_is_refused(first):
    class Birds(nn.Conv2d):
        predictor_birds = None

    model = nn.Sequential(Birds(3, 4, 3))
    if not first:
        ns.attach(model, PREDICTED)
    with pytest.raises(ns.AttachError, match="without attributes named predictor_birds"):
        ns.attach(model, PREDICTED, name="birds")
    assert ns.list_similarities(model) == ([] if first else ["default"])
    assert model(IMAGE).shape == (2, 4, 6, 6)


@pytest.mark.parametrize(
    "replace",
    [
        lambda layer: nn.utils.weight_norm(layer, "weight_hh_l0"),
        lambda layer: prune.l1_unstructured(layer, "weight_hh_l0", 0.5),
        lambda layer: parametrizations.weight_norm(layer, "weight_hh_l0"),
    ],
    ids=["old weight norm", "pruning", "weight norm"],
)
@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated:FutureWarning")
def test_a_replaced_recurrent_weight_is_refused(replace):
    model = nn.Sequential(nn.LSTM(3, 4))
    replace(model[0])
    with pytest.raises(ns.AttachError, match="expected weight_hh_l0 to be a plain parameter"):
        ns.attach(model, ns.StaticSimilarity(target_modules=["0"]))
    assert ns.list_similarities(model) == []


def test_a_parametrized_recurrent_bias_is_harmless():
    model = nn.Sequential(nn.LSTM(3, 4))
    parametrizations.weight_norm(model[0], "bias_hh_l0", dim=None)
    ns.attach(model, ns.StaticSimilarity(target_modules=["0"]))
    ours = model[0].parametrizations
    assert set(ours) == {"bias_hh_l0", "weight_ih_l0", "weight_hh_l0"}


def test_freezing_a_model_with_a_lazy_layer_changes_nothing():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.LazyLinear(5))
    ns.attach(model, ns.StaticSimilarity())
    with pytest.raises(ns.AttachError, match=r"got a lazy layer .* Call the model once first"):
        ns.freeze_backbone(model)
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_a_lazy_linear_layer_is_named_as_the_reason():
    model = nn.Sequential(nn.LazyLinear(4))
    with pytest.raises(ns.AttachError, match=r"shape of a lazy layer .* call the model once"):
        ns.attach(model, ns.StaticSimilarity(target_modules=["0"]))


def test_unmerge_refuses_a_weight_that_was_parametrized_since():
    model = ns.merge(ns.attach(small(), ns.StaticSimilarity()), keep=True)
    parametrizations.weight_norm(model[0])
    with pytest.raises(ns.MergeError, match=r"got one that was replaced or parametrized since"):
        ns.unmerge(model)
    assert parametrize.is_parametrized(model[0], "weight")


@pytest.mark.parametrize("config", [ns.StaticSimilarity("unconstrained"), PREDICTED])
@pytest.mark.parametrize("whole", [True, False], ids=["whole", "stock keys"])
def test_assigned_checkpoints_of_another_type(config, whole):
    model = ns.attach(small(), config).eval()
    state = model.state_dict() if whole else small().state_dict()
    halves = {k: v.bfloat16() if v.is_floating_point() else v for k, v in state.items()}
    model.load_state_dict(halves, assign=True)
    assert model(IMAGE.bfloat16()).dtype == torch.bfloat16


def test_predictors_that_overflow_are_refused(tmp_path):
    model = ns.attach(small(), PREDICTED)
    next(ns.similarity_parameters(model)).data.fill_(1e6)
    ns.save_similarity(model, tmp_path / "large.safetensors")
    half = small().half()
    with pytest.raises(ns.FileFormatError, match=r"values that torch.float16 can hold"):
        ns.load_similarity(half, tmp_path / "large.safetensors")
    assert ns.list_similarities(half) == []


def test_an_excluded_container_is_refused():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem = nn.Conv2d(3, 4, 3)
            self.layer1 = nn.Sequential(nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4))

    message = r"expected exclude_modules to name layers with a kernel, got 'layer1', .*'layer1\\"
    with pytest.raises(ns.AttachError, match=message):
        ns.attach(Net(), ns.StaticSimilarity(exclude_modules=["layer1"]))
    model = ns.attach(Net(), ns.StaticSimilarity(exclude_modules=r"layer1\..*"))
    assert not parametrize.is_parametrized(model.layer1[0])
    ns.attach(Net(), ns.StaticSimilarity(exclude_modules=["1"]))  # a BatchNorm: nothing to exclude
