"""Trustworthy accuracy by cross-validation, and what the tests say about every image."""

import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from neural_similarity.adapt.methods import make_adapter
from neural_similarity.adapt.training_images import TrainingImages
from neural_similarity.adapt.validation.accuracy_estimate import (
    SPREAD,
    choice_accuracy,
    choose_method,
    estimate_accuracy,
    extrapolation,
    wilson,
)
from neural_similarity.adapt.validation.cross_validation import CrossValidation, cross_validate
from neural_similarity.adapt.validation.folds import NEVER, fold_numbers


class _Guess:
    """Scores that have nothing to do with the image; the same or others after every fit."""

    def __init__(self, images, n_way, anew):
        self.shape, self.anew = (images, n_way), anew
        self.guesses = torch.randn(self.shape)

    def fit(self, rows):
        return torch.randn(self.shape) if self.anew else self.guesses

    def scores(self, learned, rows):
        return learned[rows]


class _Means:
    """The nearest class mean; remembers what it was trained on."""

    def __init__(self, features, labels, n_way):
        self.features, self.labels, self.n_way = features, labels, n_way
        self.fits = []

    def fit(self, rows):
        self.fits.append(rows)
        chosen, labels = self.features[rows], self.labels[rows]
        return torch.stack([chosen[labels == way].mean(0) for way in range(self.n_way)])

    def scores(self, learned, rows):
        assert not torch.isin(rows, self.fits[-1]).any()
        return -torch.cdist(self.features[rows], learned).square()


def clusters(n_way, shots, spread=1.0, seed=0, dimension=8):
    draw = torch.Generator().manual_seed(seed)
    means = torch.randn(n_way, 1, dimension, generator=draw)
    points = means + spread * torch.randn(n_way, shots, dimension, generator=draw)
    return points.flatten(0, 1), torch.arange(n_way).repeat_interleave(shots)


@pytest.mark.parametrize("anew", [False, True])
def test_the_reported_accuracy_does_not_flatter(anew):
    """Of four guessers the best looks better than chance; what is reported for the choice does not.

    With 40 images the best of four is on average some 1.03 standard deviations, 8 points, above
    chance; the mean of 60 repetitions has a standard error of a point.
    """
    torch.manual_seed(0)
    labels = torch.arange(2).repeat(20)
    best, reported = [], []
    for seed in range(60):
        adapters = {str(number): _Guess(40, 2, anew) for number in range(4)}
        found = cross_validate(adapters, labels, 2, folds=5, seed=seed)
        best.append(max(found.by_method.values()))
        reported.append(found.accuracy)
    assert np.mean(best) > 0.55
    assert abs(np.mean(reported) - 0.5) < 0.04


def test_the_bootstrap_repeats_the_choice():
    """Equal to the definition, written as a loop; groups are drawn as one."""
    draw = torch.Generator().manual_seed(3)
    shares = torch.tensor([[0.3], [0.6], [0.6]])
    correct = (torch.rand(3, 12, generator=draw) < shares).float()
    groups = torch.tensor([0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 7, 8])
    drawn = torch.randint(9, (1000, 9), generator=torch.Generator().manual_seed(0))
    accuracies, choices = [], set()
    for numbers in drawn.tolist():
        rights = [[correct[m, groups == g].sum().item() for g in numbers] for m in range(3)]
        outside = [row for row in range(12) if groups[row].item() not in numbers]
        best = max(range(3), key=lambda method: sum(rights[method]))
        more = [a - b for a, b in zip(rights[best], rights[0], strict=True)]
        chosen = best if sum(more) > 2 * sum(d * d for d in more) ** 0.5 else 0
        choices.add(chosen)
        accuracies.append(correct[chosen, outside].mean().item())
    assert choices == {0, 1, 2}
    assert choice_accuracy(correct, groups) == pytest.approx(np.mean(accuracies), abs=1e-6)
    assert choice_accuracy(correct[:1], groups) == pytest.approx(correct[0].mean().item())
    assert choice_accuracy(correct, torch.zeros(12, dtype=int)) == correct[0].double().mean()


def test_another_method_must_be_better_beyond_doubt():
    """Five right answers more are enough, four are not; copies count as one image."""
    correct = torch.zeros(3, 20)
    correct[1, :4], correct[2, :5] = 1, 1
    assert choose_method(correct, torch.arange(20)) == 2
    assert choose_method(correct[:2], torch.arange(20)) == 0
    correct[0, 19] = 1  # the first is right where the others are wrong
    assert choose_method(correct, torch.arange(20)) == 0
    correct[0, 19] = 0
    assert choose_method(correct, torch.arange(20) // 5) == 0


def test_the_extrapolation_follows_its_curve():
    def accuracy(images):
        return 0.9 - 2 * images**-0.5

    factor = extrapolation(60, 80, 100)
    assert accuracy(80) + factor * (accuracy(80) - accuracy(60)) == pytest.approx(accuracy(100))


def test_the_interval_is_wilsons_at_an_effective_number():
    correct = (torch.arange(200) % 10 != 0).float()[None]
    alone = torch.arange(200)
    accuracy, interval = estimate_accuracy(correct, 0, alone)
    assert accuracy == pytest.approx(0.9)
    assert interval == pytest.approx(wilson(0.9, 200 / SPREAD))
    # pairs of copies are half as many images
    _, of_pairs = estimate_accuracy(correct, 0, alone // 2)
    assert of_pairs == pytest.approx(wilson(0.9, 100 / SPREAD))
    # what is extrapolated varies more
    fewer = correct[0] * (torch.arange(200) % 7 != 0)
    higher, wider = estimate_accuracy(correct, 0, alone, fewer, 0.6)
    gain = (correct[0] - fewer).mean().item()
    assert higher == pytest.approx(0.9 + 0.6 * gain)
    assert wider[1] - wider[0] > interval[1] - interval[0]
    sure, (low, high) = estimate_accuracy(torch.ones(1, 20), 0, torch.arange(20))
    assert (sure, high) == (1, 1)
    assert 0.7 < low < 0.9
    assert wilson(0.3, 50) == pytest.approx((0.1910, 0.4375), abs=1e-4)  # of a table


def test_the_accuracy_is_that_of_the_final_classifier():
    """Sixty small folders: hardly a bias, where the tests alone are some five points too low."""
    biases, tests, inside = [], [], []
    for seed in range(60):
        points, labels = clusters(8, 200, spread=1.6, seed=seed)
        order = torch.arange(1600).view(8, 200)
        few, new = order[:, :5].flatten(), order[:, 5:].flatten()
        method = _Means(points[few], labels[few], 8)
        found = cross_validate({"means": method}, labels[few], 8, folds=5, seed=seed)
        learned = method.fit(torch.arange(40))
        right = torch.cdist(points[new], learned).argmin(1) == labels[new]
        true = right.float().mean().item()
        biases.append(found.accuracy - true)
        tests.append(found.by_method["means"] - true)
        inside.append(found.interval[0] <= true <= found.interval[1])
    assert np.mean(tests) < -0.015
    assert abs(np.mean(biases)) < 0.02  # a standard error is 1.2 points
    assert np.mean(inside) > 0.88


def test_every_fit_leaves_out_its_test_and_keeps_every_class():
    """A class of two images would be missing without both folds."""
    labels = torch.tensor([0] * 6 + [1] * 2 + [2] * 5 + [3])
    features = F.one_hot(labels).float() + 0.01 * torch.randn(14, 4)
    method, ticks = _Means(features, labels, 4), []
    found = cross_validate(
        {"means": method}, labels, 4, 5, seed=0, callback=lambda *step: ticks.append(step)
    )
    assert ticks == [(step, 10) for step in range(1, 11)]
    assert all(len(labels[rows].unique()) == 4 for rows in method.fits)
    assert [len(rows) for rows in method.fits[:5]] > [len(rows) for rows in method.fits[5:]]
    assert found.tested == 13
    assert "1 class(es) have a single image" in found.note
    assert found.accuracy == 1
    two = _Means(features, labels, 4)
    cross_validate({"means": two}, labels, 4, 2, seed=0)
    assert len(two.fits) == 2  # nothing is left without two of two folds


def test_what_is_known_of_every_image():
    points, labels = clusters(3, 20, spread=1.2, dimension=3)
    method = _Means(points, labels, 3)
    found = cross_validate({"means": method}, labels, 3, 5, seed=0)
    predicted = torch.from_numpy(found.predicted)
    assert (predicted == labels).float().mean() == pytest.approx(found.by_method["means"])
    assert found.confusion.trace() == (predicted == labels).sum()
    assert found.confusion.sum() == found.tested == 60
    wrong = found.misclassified(labels)
    assert set(wrong.tolist()) == set((predicted != labels).nonzero()[:, 0].tolist())
    assert found.confidence[wrong].tolist() == sorted(found.confidence[wrong], reverse=True)
    assert found.confidence.min() > 1 / 3
    assert found.is_tested


def test_wrong_labels_are_found():
    points, truth = clusters(5, 20, spread=0.5, dimension=16)
    labels, swapped = truth.clone(), [3, 47, 88]
    labels[swapped] = (truth[swapped] + 1) % 5
    found = cross_validate({"means": _Means(points, labels, 5)}, labels, 5, 5, seed=0)
    assert {suspect.row for suspect in found.suspects} == set(swapped)
    for suspect in found.suspects:
        assert suspect.given == labels[suspect.row]
        assert suspect.predicted == truth[suspect.row]
        assert 0.8 <= suspect.probability <= 1
    shares = [suspect.probability for suspect in found.suspects]
    assert shares == sorted(shares, reverse=True)


def test_copies_stay_together():
    """Pure noise with a copy of every image: known copies would make it look like knowledge."""
    torch.manual_seed(0)
    points, labels = torch.randn(60, 4).repeat(2, 1), torch.arange(120) % 3
    groups = torch.arange(60).repeat(2)
    nearest = _Nearest(points, labels, 3)
    naive = cross_validate({"nearest": nearest}, labels, 3, 5, seed=0)
    honest = cross_validate({"nearest": nearest}, labels, 3, 5, seed=0, groups=groups)
    assert naive.by_method["nearest"] > 0.7
    assert honest.by_method["nearest"] < 0.5
    assert len(honest.duplicates) == 60
    assert honest.duplicates[0] == (0, 60)
    assert "60 group(s) of near-identical images were kept together" in honest.note
    assert honest.conflicts == naive.duplicates == ()
    labels[0] = (labels[0] + 1) % 3
    named = cross_validate({"nearest": nearest}, labels, 3, 5, seed=0, groups=groups)
    assert named.conflicts == ((0, 60),)


class _Nearest(_Means):
    def fit(self, rows):
        return rows

    def scores(self, learned, rows):
        distances = torch.cdist(self.features[rows], self.features[learned])
        labels = self.labels[learned]
        return -torch.stack([distances[:, labels == way].amin(1) for way in range(3)], 1)


def test_one_fold_is_not_tested():
    points, labels = clusters(2, 4)
    found = cross_validate({"means": _Means(points, labels, 2)}, labels, 2, 1, seed=0)
    assert not found.is_tested
    assert found.note.startswith("Not tested: cross-validation was skipped (1 fold). So the acc")
    assert (found.accuracy, found.interval, found.before, found.after) == (None, None, None, None)
    assert found.predicted.tolist() == [-1] * 8
    assert len(found.misclassified(labels)) == 0


@pytest.mark.parametrize(
    ("images", "groups", "reason"),
    [
        (1, [0, 1], "every class has a single image"),
        (2, [0, 0, 1, 1], "near-identical images count as one, so every class has a single image"),
    ],
)
def test_the_reason_why_nothing_was_tested(images, groups, reason):
    points, labels = clusters(2, images)
    means = {"means": _Means(points, labels, 2)}
    found = cross_validate(means, labels, 2, 5, seed=0, groups=torch.tensor(groups))
    assert found.note.startswith(f"Not tested: {reason}. So the accuracy")


def test_results_are_kept_as_plain_values():
    points, labels = clusters(3, 8, spread=0.8)
    labels[0] = 2
    groups = torch.arange(24)
    groups[5] = 4
    found = cross_validate({"means": _Means(points, labels, 3)}, labels, 3, 4, 0, None, groups)
    values = json.loads(json.dumps(found.to_dict()))
    again = CrossValidation.from_dict(values)
    assert again.to_dict() == found.to_dict()
    assert again.after.error == found.after.error
    assert again.suspects == found.suspects
    assert again.duplicates == ((4, 5),)
    assert again.predicted.dtype == np.int64
    # a file of an earlier version
    names = ("method", "accuracy", "interval", "tested", "folds", "by_method", "confusion",
             "temperature", "note", "left_out")  # fmt: skip
    early = CrossValidation.from_dict({name: values[name] for name in names})
    assert early.accuracy == found.accuracy
    assert (early.before, early.suspects, len(early.predicted)) == (None, (), 0)


def test_folds_keep_a_class_together_nowhere():
    labels = torch.tensor([0] * 7 + [1] * 2 + [2] + [3] * 5)
    parts = fold_numbers(labels, 5, seed=1)
    assert parts[labels == 2].tolist() == [-1]
    for way in (0, 1, 3):
        assert torch.bincount(parts[labels == way]).max() <= 2 - (way != 0)
    sizes = torch.bincount(parts[parts >= 0], minlength=5)
    assert sizes.max() - sizes.min() <= 1
    assert not torch.equal(parts, fold_numbers(labels, 5, seed=2))


def test_folds_keep_groups_together():
    labels = torch.tensor([0] * 9 + [1] * 6 + [2] * 3)
    groups = torch.tensor([0, 0, 0, 0, 1, 1, 2, 3, 4] + [5, 5, 6, 7, 8, 9] + [10, 10, 10])
    parts = fold_numbers(labels, 4, 0, groups)
    for group in groups.unique():
        assert len(parts[groups == group].unique()) == 1
    assert parts[labels == 2].tolist() == [-1] * 3  # one group: nothing would be left to learn from
    assert set(parts[labels < 2].tolist()) == {0, 1, 2, 3}
    # the rest of class 0 is not put beside its largest group
    large = parts[0]
    assert (parts[4:9] != large).all()
    # a group of two classes, with all images of one of them
    mixed = fold_numbers(torch.tensor([0, 0, 0, 1]), 3, 0, torch.tensor([0, 1, 2, 2]))
    assert mixed[2:].tolist() == [-1, -1]
    assert sorted(mixed[:2].tolist()) == [0, 1]


def test_no_group_is_ever_split_and_no_class_is_ever_missing():
    generator = torch.Generator().manual_seed(0)

    def whole(low, high, size=()):
        return torch.randint(low, high, size, generator=generator)

    tested = 0
    for seed in range(1000):
        n_way, images = int(whole(2, 5)), int(whole(5, 16))
        labels = torch.cat([torch.arange(n_way), whole(0, n_way, (images - n_way,))])
        groups = whole(0, images, (images,))
        parts = fold_numbers(labels, 5, seed, groups)
        assert all(len(parts[groups == group].unique()) == 1 for group in groups.unique())
        numbers = parts[parts != NEVER].unique().tolist()
        assert numbers == list(range(len(numbers)))
        assert len(numbers) != 1
        assert all(len(labels[parts != number].unique()) == n_way for number in numbers)
        tested += len(numbers) > 1
    assert tested > 500


def test_a_copy_under_another_label_does_not_accuse_the_photo():
    """A class of one photo, which is a copy of one in another class: neither is tested."""
    labels = torch.tensor([0] * 8 + [1] * 8 + [2])
    torch.manual_seed(0)
    features = 3 * F.one_hot(labels, 16) + torch.randn(17, 16)
    features[16] = features[3]
    groups = torch.arange(17)
    groups[16] = 3
    data = TrainingImages(None, [], labels, 3, features, features, torch.zeros(17, 1, 1, 1))
    result = cross_validate({"ridge": make_adapter("ridge", data)}, labels, 3, 5, 0, groups=groups)
    assert result.predicted[[3, 16]].tolist() == [NEVER, NEVER]
    assert (result.tested, len(result.suspects), len(result.conflicts)) == (15, 0, 1)
    assert "1 class(es) have a single image" in result.note
