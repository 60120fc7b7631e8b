"""Methods that tune the network: what is measured on it must not have been tuned on."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from support.adapt_cases import backbone, pictures

import neural_similarity as ns
from neural_similarity.adapt import TUNING, embed_images, fit_rejection, make_adapter
from neural_similarity.adapt.methods import RememberedFits
from neural_similarity.errors import RunError

LABELS = torch.arange(3).repeat_interleave(6)


@pytest.fixture(scope="module")
def data():
    images, _ = pictures((6, 6, 6), noise=10)
    return embed_images(backbone(), images, LABELS, 3)


@pytest.mark.parametrize("method", TUNING)
def test_features_after_a_fit_are_those_of_its_network(data, method):
    adapter = make_adapter(method, data)
    learned = adapter.fit(torch.arange(0, 18, 2))
    after = adapter.features_after(learned)
    expected = F.normalize(adapter.features_in(adapter.network(learned)))
    torch.testing.assert_close(after, expected, rtol=1e-4, atol=1e-5)


def test_a_head_changes_no_features(data):
    adapter = make_adapter("ridge", data)
    assert adapter.features_after(adapter.fit(torch.arange(18))) is None


def test_fits_are_remembered_by_their_rows(data, monkeypatch):
    adapter, fitted = make_adapter("ridge", data), []
    fits, fit = RememberedFits(adapter), type(adapter).fit
    monkeypatch.setattr(type(adapter), "fit", lambda s, rows: fitted.append(rows) or fit(s, rows))
    for rows in (torch.arange(9), torch.arange(9), torch.arange(9, 18)):
        torch.testing.assert_close(
            fits.scores(fits.fit(rows), torch.arange(18)),
            adapter.scores(fit(adapter, rows), torch.arange(18)),
        )
    assert len(fitted) == 2


def test_the_threshold_is_measured_in_networks_that_have_not_seen_the_image():
    """Three folds with features of their own, each in units of its training images, by hand."""
    generator = torch.Generator().manual_seed(0)
    final = torch.randn(12, 5, generator=generator)
    labels, parts = torch.arange(2).repeat(6), torch.arange(3).repeat_interleave(4)
    by_fold = torch.randn(3, 12, 5, generator=generator)
    rejection = fit_rejection(
        final, labels, 2, parts, 0.5,
        lambda rows: by_fold[(set(range(3)) - set(parts[rows].tolist())).pop()],
    )  # fmt: skip
    distances = []
    for fold, features in enumerate(by_fold):
        unit = F.normalize(features)
        others = parts != fold
        means = torch.stack([unit[others & (labels == way)].mean(0) for way in (0, 1)])
        all_distances = 1 - (unit @ F.normalize(means).mT).amax(1)
        distances += (all_distances[~others] / all_distances[others].mean()).tolist()
    unit = F.normalize(final)
    means = torch.stack([unit[labels == way].mean(0) for way in (0, 1)])
    torch.testing.assert_close(rejection.means, F.normalize(means))
    scale = (1 - (unit @ rejection.means.mT).amax(1)).mean().item()
    assert rejection.threshold.item() == pytest.approx(scale * sorted(distances)[6])


@pytest.mark.parametrize("method", TUNING)
def test_a_loaded_tuned_network_is_not_learned_on_again(tmp_path, method):
    """Its images would look too easy: cross-validation would test on what it was tuned to."""
    images, labels = pictures((3, 3))
    made = ns.FewShotClassifier(method, backbone(), folds=2).fit(images, labels)
    made.save(tmp_path / "birds")
    made.fit(images, labels)  # in memory it learns on the network from before
    read = ns.FewShotClassifier.load(tmp_path / "birds")
    for classifier in (read, copy.deepcopy(read)):
        with pytest.raises(RunError, match=r"tuned to its images\. .* set_params\(backbone=\.\.\."):
            classifier.set_params(method="ridge").fit(images, labels)
    embedded = embed_images(read.backbone_, images, torch.tensor([0, 0, 0, 1, 1, 1]), 2)
    with pytest.raises(RunError, match="which was tuned to its images"):
        read.fit_embedded(embedded, ["a", "b"])
    read.set_params(backbone=backbone()).fit(images, labels)
