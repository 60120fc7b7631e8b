"""The accuracy of a method on new images, estimated by cross-validation.

Every image is scored once by each method, trained without the image. One method is chosen, and
:mod:`~neural_similarity.adapt.validation.accuracy_estimate` estimates its accuracy on new images.
The same scores show how well confidences are calibrated, and which labels are likely wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from .accuracy_estimate import choose_method, estimate_accuracy, extrapolation
from .calibration import held_out_probabilities, measure_calibration, temperature
from .duplicates import duplicate_groups
from .folds import NEVER, fold_numbers
from .validation_result import CrossValidation, Rows
from .wrong_labels import likely_wrong_labels

__all__ = ["CrossValidation", "Method", "cross_validate"]


class Method(Protocol):
    """What is tested: an :class:`~neural_similarity.adapt.methods.Adapter`, for example."""

    def fit(self, rows: Tensor) -> Any:
        """What it learns from the images in these rows."""

    def scores(self, learned: Any, rows: Tensor) -> Tensor:
        """Scores ``(n, n_way)`` of the images in these rows."""


def cross_validate(
    adapters: Mapping[str, Method],
    labels: Tensor,
    n_way: int,
    folds: int,
    seed: int,
    callback: Callable[[int, int], None] | None = None,
    groups: Tensor | None = None,
) -> CrossValidation:
    """Test every method on images that it was not trained on, and choose one.

    Every method is fitted once per fold. The chosen one is fitted once more per fold, without two
    folds, if there are at least three.

    Args:
        adapters: the methods to choose from. The first is chosen, unless another is clearly better
            (:func:`~neural_similarity.adapt.validation.accuracy_estimate.choose_method`).
        labels: ``(N,)``.
        n_way: number of classes.
        folds: the number of folds, if classes have that many images.
        seed: seed of the division.
        callback: called with the number of fits done and the total.
        groups: ``(N,)``, the same number for images that stay in one fold, as
            :func:`~neural_similarity.adapt.near_duplicates` returns it.
    """
    names = list(adapters)
    groups = torch.arange(len(labels)) if groups is None else groups
    parts = fold_numbers(labels, folds, seed, groups)
    count = int(parts.max()) + 1
    if count < 2:
        return _untested(names, n_way, labels, groups, _why_untested(labels, folds))
    total = count * len(names) + (count if count > 2 else 0)
    scores = {name: torch.zeros(len(labels), n_way) for name in names}
    for number in range(count):
        train, test = (parts != number).nonzero()[:, 0], (parts == number).nonzero()[:, 0]
        for place, name in enumerate(names):
            learned = adapters[name].fit(train)
            scores[name][test] = adapters[name].scores(learned, test)
            if callback is not None:
                callback(number * len(names) + place + 1, total)
    tested = parts != NEVER
    correct = torch.stack([(scores[name].argmax(1) == labels)[tested] for name in names])
    chosen = names[choose_method(correct, groups[tested])]
    fewer, factor = None, 0.0
    if count > 2:
        earlier_fits = count * len(names)
        tick = None if callback is None else lambda fits: callback(earlier_fits + fits, total)
        fewer, factor = _with_fewer_images(adapters[chosen], labels, parts, tick)
    return _judge(chosen, scores, labels, parts, groups, fewer, factor)


def _with_fewer_images(
    method: Method, labels: Tensor, parts: Tensor, callback: Callable[[int], None] | None
) -> tuple[Tensor, float]:
    """How often the method is right when trained without two folds, and the extrapolation factor.

    Without fold i and the next one, all images of the two are tested, so most are tested twice. An
    image of the second fold stays in the training set if its class would otherwise be missing.
    """
    count = int(parts.max()) + 1
    right, tests = torch.zeros(len(labels)), torch.zeros(len(labels))
    sizes = []
    for number in range(count):
        first, second = parts == number, parts == (number + 1) % count
        kept = torch.isin(labels, labels[~(first | second)])
        test = first | (second & kept)
        rows = test.nonzero()[:, 0]
        learned = method.fit((~test).nonzero()[:, 0])
        right[rows] += (method.scores(learned, rows).argmax(1) == labels[rows]).float()
        tests[rows] += 1
        sizes.append((~test).sum().item())
        if callback is not None:
            callback(number + 1)
    usual = len(labels) - (parts != NEVER).sum().item() / count
    factor = extrapolation(sum(sizes) / count, usual, len(labels))
    return right / tests.clamp(min=1), factor


def _judge(
    chosen: str,
    scores: Mapping[str, Tensor],
    labels: Tensor,
    parts: Tensor,
    groups: Tensor,
    fewer: Tensor | None,
    factor: float,
) -> CrossValidation:
    names, n_way = list(scores), scores[chosen].shape[1]
    rows = (parts != NEVER).nonzero()[:, 0]
    truth = labels[rows]
    correct = torch.stack([scores[name][rows].argmax(1) == truth for name in names]).float()
    accuracy, interval = estimate_accuracy(
        correct, names.index(chosen), groups[rows], None if fewer is None else fewer[rows], factor
    )
    tests = scores[chosen][rows]
    probabilities = held_out_probabilities(tests, truth, parts[rows])
    guess, certainty = tests.argmax(1), probabilities.max(1).values
    predicted, confidence = torch.full_like(labels, NEVER), torch.zeros(len(labels))
    predicted[rows], confidence[rows] = guess, certainty
    confusion = torch.zeros(n_way, n_way, dtype=torch.int64)
    confusion.index_put_((truth, guess), torch.ones_like(truth), accumulate=True)
    duplicates, conflicts = _duplicates(groups, labels)
    untested = len(labels.unique()) - len(truth.unique())
    return CrossValidation(
        method=chosen,
        accuracy=accuracy,
        interval=interval,
        tested=len(rows),
        folds=int(parts.max()) + 1,
        by_method={n: r.item() for n, r in zip(names, correct.mean(1), strict=True)},
        confusion=confusion.numpy(),
        temperature=temperature(tests, truth),
        note=" ".join(_notes(names, fewer is not None, untested, len(duplicates))),
        predicted=predicted.numpy(),
        confidence=confidence.double().numpy().round(4),
        before=measure_calibration(tests.softmax(1), truth),
        after=measure_calibration(probabilities, truth),
        suspects=likely_wrong_labels(probabilities, truth, rows),
        duplicates=duplicates,
        conflicts=conflicts,
    )


def _duplicates(groups: Tensor, labels: Tensor) -> tuple[tuple[Rows, ...], tuple[Rows, ...]]:
    duplicates = duplicate_groups(groups)
    conflicts = (group for group in duplicates if len(labels[list(group)].unique()) > 1)
    return duplicates, tuple(conflicts)


def _notes(names: list[str], extrapolated: bool, untested: int, duplicates: int) -> list[str]:
    notes = ["Every image was tested by a classifier that was trained without it."]
    if len(names) > 1:
        notes.append(
            f"The accuracies of the individual methods are uncorrected. A small lead is mostly "
            f"luck, so {names[0]!r} is chosen unless another method is better by more than two "
            f"standard errors. The accuracy on new images is corrected for the luck of the choice."
        )
    if extrapolated:
        notes.append(
            "It is also extrapolated to the final classifier, which learned from all images."
        )
    if duplicates:
        notes.append(
            f"{duplicates} group(s) of near-identical images were kept together, so that none was "
            "tested by a classifier trained on its copy."
        )
    if untested:
        notes.append(
            f"{untested} class(es) have a single image, or only near-identical ones, which were "
            "used for training and not tested."
        )
    return notes


def _why_untested(labels: Tensor, folds: int) -> str:
    if folds < 2:
        return "cross-validation was skipped (1 fold)"
    if labels.bincount().max() == 1:
        return "every class has a single image"
    return "near-identical images count as one, so every class has a single image"


def _untested(
    names: list[str], n_way: int, labels: Tensor, groups: Tensor, reason: str
) -> CrossValidation:
    choice = "" if len(names) == 1 else f" Method {names[0]!r} was used without a comparison."
    duplicates, conflicts = _duplicates(groups, labels)
    return CrossValidation(
        method=names[0],
        accuracy=None,
        interval=None,
        tested=0,
        folds=0,
        by_method={},
        confusion=np.zeros((n_way, n_way), np.int64),
        temperature=1.0,
        note=f"Not tested: {reason}. So the accuracy could not be estimated, and confidences are "
        f"not calibrated.{choice}",
        predicted=np.full(len(labels), NEVER, np.int64),
        confidence=np.zeros(len(labels)),
        duplicates=duplicates,
        conflicts=conflicts,
    )
