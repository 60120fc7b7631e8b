"""One lesson: a classifier trained on the pictures of one moment, and its test results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from ...adapt import (
    METHODS,
    TUNING,
    FewShotClassifier,
    fold_numbers,
    make_adapter,
)
from ..project import Picture
from .features import Examples
from .learning_curve import CurvePoint, forecast, learning_curve

__all__ = ["ALL_METHODS", "QUICK_METHODS", "Answer", "Lesson", "Neighbour", "learn"]

QUICK_METHODS = ("ridge", "proto")
"""Methods trained and tested in less than a second on 500 pictures."""
ALL_METHODS = tuple(method for method in METHODS if method not in TUNING)
"""Methods on fixed features."""
_MOST_COMPARED = 2000  # pictures; with more, only the quick methods are tested
_NEIGHBOURS = 5


@dataclass(frozen=True)
class Neighbour:
    """A training picture that resembles another one."""

    picture: Picture
    similarity: float
    """The cosine between their features."""


@dataclass(frozen=True)
class Answer:
    """The prediction for a picture.

    Attributes:
        is_known: whether the picture is like one of the classes; if not, it is none of these.
        probabilities: of each class, in the order of the lesson's labels.
        nearest: the most similar training pictures.
    """

    is_known: bool
    probabilities: tuple[float, ...]
    nearest: tuple[Neighbour, ...]


@dataclass(frozen=True, eq=False)
class Lesson:
    """The result of training.

    Attributes:
        examples: the training examples.
        classifier: the fitted classifier, with its cross-validation.
        is_complete: whether all methods were compared, and the curve was measured.
        curve: the accuracy with fewer pictures of each class.
    """

    examples: Examples
    classifier: FewShotClassifier
    is_complete: bool
    curve: tuple[CurvePoint, ...] = ()

    @property
    def per_class(self) -> float:
        """The mean number of pictures per class."""
        return len(self.examples.pictures) / len(self.examples.labels)

    @property
    def twice_as_many(self) -> float | None:
        """The expected accuracy with twice as many pictures of each class; None if unknown."""
        accuracy = self.classifier.cross_validation_.accuracy
        expected = forecast(self.curve, 2 * self.per_class)
        now = forecast(self.curve, self.per_class)
        if accuracy is None or expected is None or now is None:
            return None
        return min(1.0, accuracy + max(0.0, expected - now))

    @torch.no_grad()
    def answer(self, image: object) -> Answer:
        """Classify a picture, and find the most similar training pictures."""
        scores, features = self.classifier.scores_and_features([image])
        rejection = self.classifier.model_.rejection
        is_known = bool(rejection.accepts(features)[0]) if rejection is not None else True
        cosines = F.cosine_similarity(features, self.classifier.adapted().examples.features)
        count = min(_NEIGHBOURS, len(cosines))
        nearest = tuple(
            Neighbour(self.examples.pictures[row], float(cosines[row]))
            for row in cosines.topk(count).indices.tolist()
        )
        return Answer(is_known, tuple(scores.softmax(1)[0].tolist()), nearest)


def learn(examples: Examples, quick: bool, tick: Callable[[], None] = lambda: None) -> Lesson:
    """Train on pictures, and test the result.

    Args:
        examples: the pictures with their features.
        quick: compare only the quick methods, and leave out the curve.
        tick: called after every fit; it may raise, to stop.
    """
    few = len(examples.pictures) <= _MOST_COMPARED
    methods = ALL_METHODS if few and not quick else QUICK_METHODS
    classifier = FewShotClassifier().fit_embedded(
        examples.data, examples.labels, methods, lambda *_: tick()
    )
    if quick:
        return Lesson(examples, classifier, False)
    return Lesson(examples, classifier, True, tuple(_curve(examples, classifier, tick)))


def _curve(
    examples: Examples, classifier: FewShotClassifier, tick: Callable[[], None]
) -> Sequence[CurvePoint]:
    data, method = examples.data, classifier.method_
    if not classifier.cross_validation_.is_tested:
        return []
    if method not in QUICK_METHODS:
        method = QUICK_METHODS[0]  # the shape of the curve is much the same, and it takes seconds
    parts = fold_numbers(data.labels, classifier.folds, classifier.seed, data.groups)
    return learning_curve(make_adapter(method, data), data.labels, parts, tick)
