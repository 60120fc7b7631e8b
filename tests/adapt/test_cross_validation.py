"""Classifiers of few images against formulas, and accuracy that does not flatter."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.adapt_cases import EYE, METHODS
from torch import nn

from neural_similarity.adapt import linear_heads as heads
from neural_similarity.adapt.cross_validation import cross_validate, fold_numbers, temperature
from neural_similarity.adapt.methods import HeadAdapter
from neural_similarity.fewshot import create_method


@pytest.mark.parametrize("name", ["proto", "ridge", "finetune"])
def test_with_equally_many_images_heads_are_the_methods(name):
    """Proto and tuning as they are; Ridge on centred features, at the λ that was chosen."""
    X = torch.randn(3, 4, 6).double()
    query, labels = torch.randn(5, 6).double(), torch.arange(3).repeat_interleave(4)
    flat = X.flatten(0, 1)
    options = {"epochs": 7} if name == "finetune" else {}
    method = create_method(name, **options)
    network = method.build(nn.Flatten(), 3, (6, 1, 1)).double()
    if name == "ridge":
        centre = flat.mean(0)
        head = heads.ridge(flat, labels, 3).double()
        errors, answers = [], []
        for strength in heads._RIDGES.tolist():
            scale = (flat - centre).square().sum(1).mean().item()
            with torch.no_grad():
                network.head.log_ridge.fill_(np.log(strength * scale))
                scores = [
                    method.feature_scores(network, (X - centre)[None], at[None] - centre)[0]
                    for at in (flat, query)
                ]
            answers.append(scores[1])
            errors.append(_left_out_error(flat - centre, labels, strength * scale))
        expected = answers[int(np.argmin(errors))]
    else:
        head = (heads.prototypes if name == "proto" else _tuned(method))(flat, labels, 3).double()
        scale = heads.SCALE if name == "proto" else 1
        expected = scale * method.feature_scores(network, X[None], query[None])[0]
    with torch.no_grad():
        got = head(query)
    # scores that differ by one number for all classes say the same; weights are float32
    torch.testing.assert_close(
        got - got.mean(1, keepdim=True), expected - expected.mean(1, keepdim=True),
        rtol=1e-4, atol=1e-4,
    )  # fmt: skip


def _tuned(method):
    return lambda *given: heads.tuned(*given, method)


def _left_out_error(X, labels, strength):
    """Squared errors of images that ridge regression was not shown, one solution each."""
    Y = nn.functional.one_hot(labels).double() - 1 / 3
    total = 0.0
    for out in range(len(X)):
        kept = torch.arange(len(X)) != out
        system = X[kept].mT @ X[kept] + strength * torch.eye(X.shape[1]).double()
        W = torch.linalg.solve(system, X[kept].mT @ Y[kept])
        total += (X[out] @ W - Y[out]).square().sum().item()
    return total


def test_a_class_of_few_images_counts_as_much_as_one_of_many():
    """Of features that tell nothing, a classifier that goes by numbers would tell the larger."""
    labels = torch.tensor([0] * 40 + [1] * 4)
    weights = heads.class_weights(labels, 2)
    assert weights[:40].sum().item() == pytest.approx(
        weights[40:].sum().item(), rel=1e-5
    )  # float32
    X, asked = torch.randn(44, 3), torch.randn(1000, 3)
    tune = _tuned(create_method("finetune"))
    for head in (heads.prototypes, heads.ridge, tune):
        told = head(X, labels, 2)(asked).argmax(1).float().mean()
        assert 0.15 < told < 0.85


class _Guess(HeadAdapter):
    """Scores that have nothing to do with the image."""

    def __post_init__(self):
        self.guesses = torch.randn(len(self.labels), self.n_way)

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
    best, reported = [], []
    for seed in range(100):
        adapters = {name: _Guess(EYE, labels, labels, 2) for name in METHODS}
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


def test_ridge_of_uneven_classes_is_that_of_images_repeated():
    """Classes count the same: as if images of the smaller came more often."""
    X, labels = torch.randn(9, 4).double() + 2, torch.tensor([0] * 6 + [1] * 3)
    head = heads.ridge(X, labels, 2)
    repeated = torch.tensor([*range(9), 6, 7, 8])
    centre = X[repeated].mean(0)
    R, Y = X[repeated] - centre, F.one_hot(labels[repeated], 2).double() - 0.5
    share = 9 / 12  # weights sum to the number of images
    trace = share * R.square().sum() / 9
    candidates = [
        heads.SCALE * (X - centre) @ torch.linalg.solve(
            share * R.T @ R + ridge * trace * torch.eye(4).double(), share * R.T @ Y
        )
        for ridge in heads._RIDGES
    ]  # fmt: skip
    ours = head(X.float()).double()
    assert min((ours - one).abs().max() for one in candidates) < 1e-4, "float32"
