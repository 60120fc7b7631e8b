r"""What more pictures would bring: the accuracy with fewer pictures, and a curve fitted to it.

The accuracy with m pictures of each class grows approximately as

.. math:: a(m) = a_\infty - b\, m^{-1/2},

the rate that :mod:`~neural_similarity.adapt` uses to extrapolate its estimate. The curve is fitted
to the tests with fewer pictures, by least squares, with :math:`b \ge 0`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

__all__ = ["CurvePoint", "forecast", "learning_curve"]

_SIZES = (1, 2, 3, 5, 8, 12, 20, 30, 50, 80, 120, 200)
_RATE = 0.5


class CurvePoint(NamedTuple):
    """The accuracy with this many pictures per class."""

    per_class: float
    accuracy: float


class _Method(Protocol):
    def fit(self, rows: Tensor) -> Any: ...

    def scores(self, learned: Any, rows: Tensor) -> Tensor: ...


def learning_curve(
    method: _Method,
    labels: Tensor,
    parts: Tensor,
    tick: Callable[[], None] = lambda: None,
) -> list[CurvePoint]:
    """Test a method after training on fewer pictures of each class.

    Args:
        method: an adapter of :func:`~neural_similarity.adapt.make_adapter`.
        labels: ``(N,)``.
        parts: ``(N,)``, the fold of each picture, as
            :func:`~neural_similarity.adapt.fold_numbers` returns it.
        tick: called after every fit; it may raise, to stop.
    """
    folds = int(parts.max()) + 1
    usual = len(labels) / len(labels.unique())
    generator = torch.Generator().manual_seed(0)
    points = []
    for size in _SIZES:
        if size > 0.75 * usual or folds < 2:
            break
        right, tests = 0, 0
        for fold in range(folds):
            test = (parts == fold).nonzero()[:, 0]
            train = _some(labels, parts != fold, size, generator)
            guess = method.scores(method.fit(train), test).argmax(1)
            right, tests = right + int((guess == labels[test]).sum()), tests + len(test)
            tick()
        points.append(CurvePoint(size, right / tests))
    return points


def forecast(points: Sequence[CurvePoint], per_class: float) -> float | None:
    """The expected accuracy with this many pictures per class; None from fewer than two points.

    >>> round(forecast([CurvePoint(1, 0.5), CurvePoint(4, 0.7), CurvePoint(9, 0.7667)], 16), 2)
    0.8
    """
    if len(points) < 2:
        return None
    sizes = torch.tensor([point.per_class for point in points], dtype=torch.float64)
    shares = torch.tensor([point.accuracy for point in points], dtype=torch.float64)
    inputs = sizes**-_RATE
    weights = sizes / sizes.sum()  # large sizes predict larger ones best
    mean_input, mean = (weights * inputs).sum(), (weights * shares).sum()
    spread = (weights * (inputs - mean_input) ** 2).sum()
    slope = (weights * (inputs - mean_input) * (shares - mean)).sum() / spread
    value = mean + slope.clamp(max=0) * (per_class**-_RATE - mean_input)
    return float(value.clamp(0, 1))


def _some(labels: Tensor, allowed: Tensor, size: int, generator: torch.Generator) -> Tensor:
    """Rows of at most ``size`` allowed pictures of each class, drawn at random."""
    rows = []
    for way in labels.unique():
        own = (allowed & (labels == way)).nonzero()[:, 0]
        rows.append(own[torch.randperm(len(own), generator=generator)[:size]])
    return torch.cat(rows)
