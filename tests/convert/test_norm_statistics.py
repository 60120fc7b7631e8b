"""Running statistics of a frozen network: kept, or their change is not silent."""

import copy
from contextlib import nullcontext

import pytest
import torch
from torch import nn

import neural_similarity as ns


def _frozen(config, norm=None):
    norm = norm or nn.BatchNorm2d(4)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), norm, nn.Flatten(), nn.Linear(400, 2))
    original = copy.deepcopy(model)
    ns.freeze_backbone(ns.attach(model, config))
    return model, original


IMAGES = torch.randn(4, 3, 12, 12, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("config", [ns.StaticSimilarity(), ns.DynamicSimilarity()])
def test_changed_statistics_of_a_frozen_network_are_not_silent(tmp_path, config):
    """The file lacks them, so the original network with the file is another network."""
    model, original = _frozen(config)
    file = tmp_path / "m.safetensors"
    ns.freeze_statistics(model.train())
    model(IMAGES)
    ns.save_similarity(model, file)  # nothing changed, so nothing is said
    assert all(m.training for m in model.modules() if m is not model[1])  # predictors learn theirs
    model.train()(IMAGES)
    for twin in (model, copy.deepcopy(model)):
        with pytest.warns(ns.ChangedStatisticsWarning, match=r"got 1 whose running mean .* chang"):
            ns.save_similarity(twin, file)
    loaded = ns.load_similarity(original, file).eval()
    assert not torch.allclose(loaded(IMAGES), model.eval()(IMAGES))
    ns.freeze_backbone(model)  # from here on
    ns.save_similarity(model.half(), file)
    model.float().train()(IMAGES)
    model.requires_grad_(True)  # trained as a whole: nobody expects the file to hold that
    ns.save_similarity(model, file)


@pytest.mark.parametrize(
    ("norm", "changes"),
    [
        (nn.InstanceNorm2d(4, track_running_stats=True), True),
        (nn.BatchNorm2d(4, affine=False), True),
        (nn.BatchNorm2d(4, momentum=0.0), False),
        (nn.BatchNorm2d(4, track_running_stats=False), False),
    ],
)
def test_what_counts_are_the_statistics_themselves(tmp_path, norm, changes):
    model, _ = _frozen(ns.StaticSimilarity(), copy.deepcopy(norm))
    model.train()(IMAGES)
    with pytest.warns(ns.ChangedStatisticsWarning) if changes else nullcontext():
        ns.save_similarity(model, tmp_path / "m.safetensors")
