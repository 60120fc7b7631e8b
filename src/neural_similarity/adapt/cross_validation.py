"""The accuracy of a method on new images, estimated by cross-validation.

Every image is scored once, by a classifier that was trained without it. If one of several methods
is chosen, the accuracy of the best is too optimistic: it is the best partly by chance. So each fold
is classified by the method that was best on the *other* folds, which is independent of this one,
and the accuracy of that is reported for the choice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .._json import Count, Share, build
from ..errors import FileFormatError
from ..train.evaluate import Evaluation
from .methods import METHODS, Adapter

__all__ = ["CrossValidation", "cross_validate", "fold_numbers", "temperature"]

_NEVER = -1
_TEMPERATURES = 2.0 ** torch.arange(-5.0, 5.25, 0.25)


@dataclass(frozen=True)
class CrossValidation:
    """The result of cross-validation.

    Attributes:
        method: the method that was chosen, or the only one.
        accuracy: of the whole procedure, choice included; None if nothing could be tested.
        interval: Wilson's 95 % interval of the accuracy.
        tested: how many images were tested, each once.
        folds: how many folds were left out in turn; 0 if none.
        by_method: accuracy of each method; the highest of several is too optimistic.
        confusion: ``(n_way, n_way)``, images of class i (row) that were predicted as j (column).
        temperature: the scores are divided by it, so that their softmax gives probabilities.
        note: how to read these numbers.
        left_out: methods that were not compared, and why.
    """

    method: str
    accuracy: float | None
    interval: tuple[float, float] | None
    tested: int
    folds: int
    by_method: Mapping[str, float]
    confusion: NDArray[np.int64] = field(repr=False)
    temperature: float
    note: str
    left_out: Mapping[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for a file."""
        return {**vars(self), "by_method": dict(self.by_method), "left_out": dict(self.left_out),
                "confusion": self.confusion.tolist()}  # fmt: skip

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], where: object = "values") -> CrossValidation:
        """The inverse of :meth:`to_dict`; ``where`` is the file that the values come from."""
        stored = build(_Stored, dict(values), f"{where}, 'cross_validation'", FileFormatError)
        if len({len(row) for row in stored.confusion}) > 1:
            raise FileFormatError(
                f"{where}: expected 'cross_validation.confusion' with equal rows, got "
                f"{stored.confusion}. The file is damaged."
            )
        confusion = np.array(stored.confusion, np.int64)
        return cls(**{**vars(stored), "confusion": confusion})


@dataclass(frozen=True)
class _Stored:
    """A :class:`CrossValidation` in a file."""

    method: str
    accuracy: Share | None
    interval: tuple[float, float] | None
    tested: Count
    folds: Count
    by_method: dict[str, float]
    confusion: list[list[Count]]
    temperature: float
    note: str
    left_out: dict[str, str] = field(default_factory=dict)


def cross_validate(
    adapters: Mapping[str, Adapter],
    labels: Tensor,
    n_way: int,
    folds: int,
    seed: int,
    callback: Callable[[int, int], None] | None = None,
) -> CrossValidation:
    """Test every method on images that it was not trained on, and choose one.

    Args:
        adapters: the methods to choose from.
        labels: ``(N,)``.
        n_way: how many classes there are.
        folds: the number of folds, if classes have so many images.
        seed: seed of the division.
        callback: is called with the number of fits done and the total.
    """
    names = [name for name in METHODS if name in adapters]
    parts = fold_numbers(labels, folds, seed)
    count = int(parts.max()) + 1
    if count < 2:
        return _untested(names, n_way)
    scores = {name: torch.zeros(len(labels), n_way) for name in names}
    for number in range(count):
        train, test = (parts != number).nonzero()[:, 0], (parts == number).nonzero()[:, 0]
        for place, name in enumerate(names):
            learned = adapters[name].fit(train)
            scores[name][test] = adapters[name].scores(learned, test)
            if callback is not None:
                callback(number * len(names) + place + 1, count * len(names))
    return _judge(names, scores, labels, parts, n_way)


def fold_numbers(labels: Tensor, folds: int, seed: int) -> Tensor:
    """The fold ``(N,)`` in which each image is tested; −1 for the only image of its class.

    The images of a class go to different folds, as far as there are enough. There are no more folds
    than images in the largest class.

    >>> fold_numbers(torch.tensor([0, 0, 1, 1, 2]), 5, seed=0).sort().values.tolist()
    [-1, 0, 0, 1, 1]
    """
    counts = torch.bincount(labels)
    count = min(folds, int(counts.max()))
    generator = torch.Generator().manual_seed(seed)
    parts = torch.full_like(labels, _NEVER)
    offset = 0  # where the next class begins, so that folds have similar sizes
    for way, members in enumerate(counts.tolist()):
        order = torch.randperm(members, generator=generator)
        if members > 1 and count > 1:
            rows = (labels == way).nonzero()[:, 0][order]
            parts[rows] = (torch.arange(members) + offset) % count
            offset += members
    return parts


def temperature(scores: Tensor, labels: Tensor) -> float:
    """The divisor of scores for which their softmax fits how often predictions are correct.

    One more image, with equal weight for every class, keeps it above zero if all are correct.
    """
    if not len(scores):
        return 1.0
    typical = scores.sort(1).values.mean(0)
    losses = []
    for value in _TEMPERATURES.tolist():
        log_probabilities = (scores / value).log_softmax(1)
        loss = -log_probabilities[torch.arange(len(labels)), labels].sum()
        losses.append(loss - (typical / value).log_softmax(0).mean())
    return _TEMPERATURES[int(torch.stack(losses).argmin())].item()


def _judge(
    names: list[str], scores: Mapping[str, Tensor], labels: Tensor, parts: Tensor, n_way: int
) -> CrossValidation:
    tested = parts != _NEVER
    correct = torch.stack([scores[name].argmax(1) == labels for name in names]).float()
    predictions = torch.full_like(labels, _NEVER)
    for number in range(int(parts.max()) + 1):
        here = parts == number
        others = correct[:, tested & ~here].sum(1)
        best = names[int(others.argmax())]
        predictions[here] = scores[best][here].argmax(1)
    chosen = names[int(correct[:, tested].sum(1).argmax())]
    truth, predicted = labels[tested], predictions[tested]
    confusion = torch.zeros(n_way, n_way, dtype=torch.int64)
    confusion.index_put_((truth, predicted), torch.ones_like(truth), accumulate=True)
    errors, images = int((truth != predicted).sum()), len(truth)
    low, high = Evaluation(errors, images, 0.0).interval()
    lone = int((torch.bincount(labels, minlength=n_way) == 1).sum())
    return CrossValidation(
        method=chosen,
        accuracy=1 - errors / images,
        interval=(1 - high, 1 - low),
        tested=images,
        folds=int(parts.max()) + 1,
        by_method={n: r.item() for n, r in zip(names, correct[:, tested].mean(1), strict=True)},
        confusion=confusion.numpy(),
        temperature=temperature(scores[chosen][tested], truth),
        note=" ".join(_notes(len(names), lone)),
    )


def _notes(methods: int, lone: int) -> list[str]:
    notes = ["Every image was tested by a classifier that was trained without it."]
    if methods > 1:
        notes.append(
            "Each fold was classified by the method that was best on the other folds, so the "
            "accuracy is not too optimistic; the highest of the single methods' accuracies is."
        )
    if lone:
        notes.append(
            f"{lone} class(es) have a single image, which was used for training and not tested."
        )
    return notes


def _untested(names: list[str], n_way: int) -> CrossValidation:
    preferred = "proto" if "proto" in names else names[0]
    choice = "" if len(names) == 1 else f" Method {preferred!r} was used without a comparison."
    return CrossValidation(
        method=preferred,
        accuracy=None,
        interval=None,
        tested=0,
        folds=0,
        by_method={},
        confusion=np.zeros((n_way, n_way), np.int64),
        temperature=1.0,
        note="Every class has a single image, or there was one fold, so the accuracy could not be "
        f"estimated.{choice}",
    )
