"""Models that people have: wrapped, on the meta device, with shared or edited weights."""

import copy

import pytest
import torch
from torch import nn

import neural_similarity as ns
from neural_similarity.convert import multiply_adds
from neural_similarity.export import export_model
from neural_similarity.models.cnn import CNN


def images():
    return torch.randn(2, 4, 9, 8, generator=torch.Generator().manual_seed(0))


def small():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(4, 6, 3), nn.Conv2d(6, 4, 3))


def trained(model):
    return [name for name, parameter in model.named_parameters() if parameter.requires_grad]


@pytest.mark.parametrize(
    "wrap", [nn.DataParallel, lambda model: torch.compile(model, backend="eager")]
)
def test_freezing_finds_the_classifier_behind_a_wrapper(wrap):
    model = CNN(5, image_size=8, width=4, hidden=16, conv_classifier=True)
    ns.attach(model, ns.StaticSimilarity())
    ns.freeze_backbone(model)
    expected = trained(model)
    model.requires_grad_()
    ns.freeze_backbone(wrap(model))
    assert trained(model) == expected
    assert any(name.startswith("classifier") for name in expected)


def test_freezing_trains_all_of_several_classifiers():
    class Distilled(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.head, self.teacher = (
                nn.Conv2d(4, 6, 3),
                nn.Linear(6, 2),
                nn.Linear(6, 2),
            )

        def get_classifier(self):
            return self.head, self.teacher

    model = ns.attach(Distilled(), ns.StaticSimilarity())
    ns.freeze_backbone(model)
    assert {name.partition(".")[0] for name in trained(model)} == {"conv", "head", "teacher"}


@pytest.mark.parametrize("config", [ns.StaticSimilarity(), ns.DynamicSimilarity()])
def test_a_stock_checkpoint_does_not_leave_a_similarity_on_the_meta_device(config):
    with torch.device("meta"):
        model = ns.attach(small(), config)
    with pytest.raises(RuntimeError, match="Missing key"):
        model.load_state_dict(small().state_dict(), assign=True)
    whole = ns.attach(small(), config).state_dict()
    model.load_state_dict(whole, assign=True)
    assert not any(parameter.is_meta for parameter in model.parameters())


def test_the_meta_device_has_nothing_to_merge_save_or_load(tmp_path):
    with torch.device("meta"):
        model = ns.attach(small(), ns.StaticSimilarity())
    with pytest.raises(ns.MergeError, match="to have values, got parameters on the meta device"):
        ns.merge(model)
    with pytest.raises(ns.AttachError, match="save_similarity: expected similarities with values"):
        ns.save_similarity(model, tmp_path / "m.safetensors")
    ns.save_similarity(ns.attach(small(), ns.StaticSimilarity()), tmp_path / "m.safetensors")
    with pytest.raises(ns.AttachError, match="load_similarity: expected similarities with values"):
        ns.load_similarity(model, tmp_path / "m.safetensors")


def test_a_layer_that_merges_itself_in_evaluation_mode_is_itself_again():
    class LowRank(nn.Linear):
        """As in loralib: ``eval`` adds a product to the weight, and ``train`` subtracts it."""

        merged = False

        def __init__(self, inputs, outputs):
            super().__init__(inputs, outputs)
            self.a, self.b = (nn.Parameter(torch.randn(s)) for s in ((2, inputs), (outputs, 2)))

        def train(self, mode=True):
            super().train(mode)
            if self.merged == mode:
                self.weight.data += (-1 if mode else 1) * (self.b @ self.a)
                self.merged = not mode
            return self

    model = nn.Sequential(small(), nn.Flatten(), LowRank(80, 2), nn.BatchNorm1d(2))
    model[3].eval()
    weight = model[2].weight.clone()
    multiply_adds(model, images())
    assert not model[2].merged
    torch.testing.assert_close(model[2].weight, weight)
    assert [module.training for module in model] == [True, True, True, False]

    class Parent(nn.Sequential):
        def train(self, mode=True):
            return super().train(mode)

    model = Parent(model, nn.ReLU())
    model[0][2].eval()  # it has merged itself, and stays so
    weight = model[0][2].weight.clone()
    multiply_adds(model, images())
    assert model[0][2].merged
    torch.testing.assert_close(model[0][2].weight, weight)
    model.eval()
    model[0][2].train()  # and the other way round
    multiply_adds(model, images())
    assert not model[0][2].merged
    assert (model.training, model[0][2].training) == (False, True)


def test_merging_beside_a_parametrization_of_something_else():
    model = small()
    nn.utils.parametrizations.weight_norm(model[0], "bias", dim=None)
    ns.attach(model, ns.StaticSimilarity(target_modules=["0"]))
    nn.init.normal_(next(ns.similarity_parameters(model)))
    expected = model(images())
    torch.testing.assert_close(ns.merge(model)(images()), expected)


def test_a_stock_checkpoint_beside_state_that_is_no_tensor():
    class Counted(nn.Module):
        def __init__(self, base):
            super().__init__()
            self.base = base

        def get_extra_state(self):
            return {"calls": 3}

        def set_extra_state(self, state):
            pass

    model = ns.attach(small(), ns.DynamicSimilarity())
    model[0].predictor.network.first = Counted(model[0].predictor.network.first)
    model.load_state_dict(small().state_dict())


def test_merging_refuses_a_weight_that_was_shared_after_attaching():
    model = nn.Sequential(nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 3))
    ns.attach(model, ns.StaticSimilarity(target_modules=["0"]))
    model[1].weight = model[0].parametrizations.weight.original
    with pytest.raises(ns.MergeError, match=r"separate weights, got .*original and 1\.weight"):
        ns.merge(model)
    assert ns.list_similarities(model) == ["default"]


def test_dynamic_layers_may_share_a_weight(tmp_path):
    def tied():
        model = nn.Sequential(nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 3))
        model[1].weight = model[0].weight
        return model

    torch.manual_seed(0)
    model = tied()
    plain = copy.deepcopy(model)
    ns.attach(model, ns.DynamicSimilarity())
    torch.testing.assert_close(model(images()), plain(images()))
    assert model[0].weight is model[1].weight
    ns.save_similarity(model, tmp_path / "m.safetensors")
    ns.load_similarity(plain, tmp_path / "m.safetensors")
    with pytest.raises(ns.AttachError, match="separate weights"):
        ns.attach(tied(), ns.StaticSimilarity())


@pytest.mark.parametrize("wrap", [nn.DataParallel, lambda model: model])
def test_export_of_a_wrapped_model_and_an_example_with_gradient(wrap, tmp_path):
    model = wrap(ns.attach(small(), ns.StaticSimilarity()))
    example = images().requires_grad_()
    assert export_model(model, example, tmp_path / "m.pt2", "torch-export") < 1e-5


def test_a_file_does_not_overflow_in_a_model_of_lower_precision(tmp_path):
    model = ns.attach(small(), ns.StaticSimilarity())
    next(ns.similarity_parameters(model)).data.fill_(1e6)
    ns.save_similarity(model, tmp_path / "m.safetensors")
    half = small().half()
    with pytest.raises(ns.FileFormatError, match=r"torch.float16 can hold, got up to 1e\+06"):
        ns.load_similarity(half, tmp_path / "m.safetensors")
    assert ns.list_similarities(half) == []
