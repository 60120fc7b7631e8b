"""Accuracy by cross-validation that does not flatter, and the temperature of scores."""

import numpy as np
import pytest
import torch
from support.adapt_cases import EYE, METHODS

from neural_similarity.adapt.cross_validation import cross_validate, fold_numbers, temperature
from neural_similarity.adapt.methods.on_features import HeadAdapter
from neural_similarity.adapt.training_images import embed_images


class _Guess(HeadAdapter):
    """Scores that have nothing to do with the image."""

    def __post_init__(self):
        self.guesses = torch.randn(len(self.data), self.data.n_way)

    def fit(self, rows):
        return None

    def scores(self, learned, rows):
        return self.guesses[rows]


def test_the_reported_accuracy_does_not_flatter():
    """Of four guessers the best looks better than chance; what is reported for the choice does not.

    With 40 images the best of four is on average some 1.03 standard deviations, 8 points, above
    chance; the mean of 100 repetitions has a standard error of 0.8 points.
    """
    labels = torch.arange(2).repeat(20)
    data = embed_images(EYE, [np.zeros((8, 8, 3), np.uint8)] * 40, labels, 2)
    best, reported = [], []
    for seed in range(100):
        adapters = {name: _Guess(data) for name in METHODS}
        found = cross_validate(adapters, labels, 2, folds=5, seed=seed)
        best.append(max(found.by_method.values()))
        reported.append(found.accuracy)
    assert np.mean(best) > 0.55
    assert abs(np.mean(reported) - 0.5) < 0.03


def test_folds_keep_a_class_together_nowhere():
    labels = torch.tensor([0] * 7 + [1] * 2 + [2] + [3] * 5)
    parts = fold_numbers(labels, 5, seed=1)
    assert parts[labels == 2].tolist() == [-1]
    for way in (0, 1, 3):
        assert torch.bincount(parts[labels == way]).max() <= 2 - (way != 0)
    sizes = torch.bincount(parts[parts >= 0], minlength=5)
    assert sizes.max() - sizes.min() <= 1
    assert not torch.equal(parts, fold_numbers(labels, 5, seed=2))


def test_the_temperature_fits_probabilities():
    """Scores whose softmax is right, made ten times too sharp: the temperature undoes it."""
    torch.manual_seed(1)
    scores = 2 * torch.randn(4000, 3)
    labels = torch.distributions.Categorical(logits=scores).sample()
    assert temperature(10 * scores, labels) == pytest.approx(
        10, rel=0.2
    )  # steps of a quarter power
    sure = 5 * torch.eye(3)
    assert 0 < temperature(sure, torch.arange(3)) < 10
    assert temperature(torch.zeros(0, 3), torch.zeros(0)) == 1
