"""The curve of plain networks over their cost, and how far other networks are above it."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import log, sqrt
from statistics import fmean
from typing import Any

import numpy as np

from ...costs import AXES
from ...intervals import NORMAL, Estimate, over_seeds_and_episodes
from ...tables.equal_cost import PLAIN
from ..comparison import on_same_episodes
from ..row_results import RowResults, find_test

__all__ = ["Curve", "Point", "best_first", "excesses", "has_curve", "points_of", "verdict"]


@dataclass(frozen=True)
class Point:
    """A network: what it costs, and its accuracy in percent by seed.

    A seed has one accuracy, or one for each episode if all networks share them. ``selected_by`` is
    the seed whose result decided that the others were run, or None if they were planned.
    """

    name: str
    title: str
    cost: Mapping[str, float]
    by_seed: Mapping[int, Sequence[float]]
    selected_by: int | None = None

    @cached_property
    def accuracy(self) -> Estimate:
        return over_seeds_and_episodes(list(self.by_seed.values()))

    @cached_property
    def compared(self) -> Mapping[int, Sequence[float]]:
        """The seeds that count in comparisons.

        The one that selected the network would flatter it, so it counts only if it is the only one.
        """
        others = {s: values for s, values in self.by_seed.items() if s != self.selected_by}
        return others or self.by_seed

    @property
    def is_plain(self) -> bool:
        return self.name.startswith(PLAIN)


def points_of(
    rows: Mapping[str, RowResults], costs: Mapping[str, Mapping[str, float]], shots: int | None,
    planned: Container[str],
) -> list[Point]:  # fmt: skip
    """Networks that were tested; ``shots`` chooses the test of a few-shot study.

    A network with a diverged seed is left out: its other seeds would be a biased selection.
    """
    tested_rows = {
        name: row for name, row in rows.items()
        if row.tested and not row.diverged and name in costs
    }  # fmt: skip
    records = [
        (name, seed, r) for name, row in tested_rows.items() for seed, r in row.finished.items()
    ]
    if shots is None:
        accuracies: list[list[float]] = [[1 - r["error"]] for *_, r in records]
    else:
        accuracies = _by_episode([find_test(r, shots) for *_, r in records])
    by_seed: dict[str, dict[int, list[float]]] = {name: {} for name in tested_rows}
    for (name, seed, _), values in zip(records, accuracies, strict=True):
        by_seed[name][seed] = [100 * value for value in values]
    return [
        Point(
            name, row.row.title, costs[name], by_seed[name],
            None if name in planned or name.startswith(PLAIN) else min(by_seed[name]),
        )
        for name, row in tested_rows.items()
    ]  # fmt: skip


def _by_episode(tests: Sequence[Mapping[str, Any]]) -> list[list[float]]:
    """Accuracies on the episodes that all tests share, or else their means."""
    return on_same_episodes(tests) or [[test["mean"]] for test in tests]


@dataclass(frozen=True)
class Curve:
    """Accuracy of plain networks as a function of their cost: a least-squares fit in log cost.

    It is a parabola, or a line if there are fewer than four widths. With several seeds of several
    widths, a lucky run hardly moves it. On the axis of time, widths that are no better than a
    faster one are left out: some are slow on a processor, and nobody would choose them.
    """

    axis: str
    widths: Sequence[Point]

    @classmethod
    def of(cls, points: Sequence[Point], axis: str) -> Curve:
        """The curve of the plain networks among some."""
        plain = sorted((p for p in points if p.is_plain), key=lambda p: p.cost[axis])
        if axis == "seconds":
            plain = [p for n, p in enumerate(plain) if all(_is_better(p, q) for q in plain[:n])]
        return cls(axis, plain)

    def ends(self) -> tuple[float, float]:
        """The lowest and the highest cost."""
        costs = [width.cost[self.axis] for width in self.widths]
        return min(costs), max(costs)

    def weights(self, cost: float) -> list[float]:
        """What each width adds to the curve at a cost; the fit is linear in the accuracies."""
        places, centre, terms = self._places()
        fit = np.linalg.pinv(np.vander(places - centre, terms))
        return [float(w) for w in np.vander([log(cost) - centre], terms)[0] @ fit]

    def slope(self, cost: float) -> float:
        """How fast the mean accuracy rises with the logarithm of cost."""
        places, centre, terms = self._places()
        means = [width.accuracy.mean for width in self.widths]
        rising = np.polyder(np.polyfit(places - centre, means, terms - 1))
        return float(np.polyval(rising, log(cost) - centre))

    def _places(self) -> tuple[np.ndarray, float, int]:
        """The logarithms of costs, their mean, and how many terms are fitted."""
        places = np.log([width.cost[self.axis] for width in self.widths])
        return places, float(places.mean()), 3 if len(places) > 3 else 2

    def at(self, cost: float) -> float:
        """The mean accuracy at a cost."""
        means = [width.accuracy.mean for width in self.widths]
        return sum(w * mean for w, mean in zip(self.weights(cost), means, strict=True))

    def misfits(self) -> list[tuple[str, float]]:
        """How far each width is above its own curve, by title."""
        return [
            (width.title, width.accuracy.mean - self.at(width.cost[self.axis]))
            for width in self.widths
        ]

    def seeds(self, point: Point) -> list[int]:
        """The seeds on which a network is compared: those that it shares with :meth:`beside`."""
        return _shared_seeds(point, self.beside(point).widths)

    def beside(self, point: Point) -> Curve:
        """The curve of those widths that allow the most comparisons, widths times seeds."""
        shared = [len(point.compared.keys() & width.by_seed.keys()) for width in self.widths]
        choices = [
            [w for w, count in zip(self.widths, shared, strict=True) if count >= least]
            for least in sorted(set(shared) - {0}, reverse=True)
        ]
        several = [widths for widths in choices if len(widths) > 1]
        best = max(several, key=lambda ws: len(ws) * len(_shared_seeds(point, ws)), default=())
        return replace(self, widths=best)

    def excess(self, point: Point) -> Estimate | None:
        """Points of accuracy above the curve at the same cost, paired by seed and by episode.

        On the axis of time, the interval includes the error of timing.

        None for a network that costs less or more than all widths, or shares no seed with them.
        """
        curve, cost = self.beside(point), point.cost[self.axis]
        seeds = _shared_seeds(point, curve.widths)
        if not seeds:
            return None
        low, high = curve.ends()
        if not low <= cost <= high:
            return None
        weights = curve.weights(cost)

        def heights(seed: int) -> list[float]:
            widths = np.array([width.by_seed[seed] for width in curve.widths])
            return list(np.array(point.by_seed[seed]) - weights @ widths)

        height = over_seeds_and_episodes([heights(seed) for seed in seeds])
        if self.axis != "seconds":
            return height
        return height.widened(curve.timing_half(cost, point.cost["timing_error"]))

    def timing_half(self, cost: float, error: float) -> float:
        """The half-width of an excess from errors of timing: of the network, and of the widths.

        To measure a width as slower by δ in log time is to lower the curve by its slope times δ
        there, as far as that width counts.
        """
        shifts = [self.slope(cost)] + [
            weight * self.slope(width.cost[self.axis])
            for weight, width in zip(self.weights(cost), self.widths, strict=True)
        ]
        return NORMAL * error * sqrt(sum(shift**2 for shift in shifts))


def excesses(
    name: str, points: Sequence[Point], earlier: Sequence[Sequence[Point]]
) -> dict[str, Estimate | None]:
    """How far a network is above the curve of each axis.

    Measurements differ: on the axis of time, the least favourable of the newest and of earlier ones
    counts. That is one in which the network is below the curve, or else one in which it costs more
    or less than all widths, or else the one with the lowest end of the interval.
    """
    found = dict.fromkeys(AXES) | {
        axis: Curve.of(points, axis).excess(point)
        for point in points
        if point.name == name
        for axis in AXES
    }
    times = [
        Curve.of(measured, "seconds").excess(point)
        for measured in (points, *earlier)
        for point in measured
        if point.name == name  # an earlier measurement may lack it
    ]
    return {**found, "seconds": min(times, key=_favour, default=None)}


def _favour(excess: Estimate | None) -> tuple[int, float]:
    """The order of measurements, the least favourable first."""
    if excess is None:
        return 1, 0.0
    lowest = excess.mean if excess.low is None else excess.low
    return (0 if verdict(excess) == "below" else 2), lowest


def _shared_seeds(point: Point, widths: Sequence[Point]) -> list[int]:
    """The seeds that a network shares with all of these; none if there are none of these."""
    return [s for s in point.compared if widths and all(s in width.by_seed for width in widths)]


def _is_better(point: Point, faster: Point) -> bool:
    """On the seeds that both have, if there are any."""
    seeds = point.by_seed.keys() & faster.by_seed.keys()
    if not seeds:
        return point.accuracy.mean > faster.accuracy.mean
    return fmean(fmean(point.by_seed[s]) - fmean(faster.by_seed[s]) for s in seeds) > 0


def has_curve(points: Sequence[Point]) -> bool:
    """Whether there are plain networks to compare with."""
    return sum(point.is_plain for point in points) > 1


def verdict(excess: Estimate | None) -> str:
    """In words: above the curve, below it, not separated from it, or not known yet."""
    if excess is None:
        return "outside the curve"
    if excess.low is None or excess.high is None or "seeds" not in excess.over:
        return "one seed"
    if excess.low > 0:
        return "above"
    return "below" if excess.high < 0 else "not separated"


def best_first(points: Sequence[Point], curve: Curve) -> Iterator[Point]:
    """Networks with a similarity, the highest above the curve first."""

    def height(point: Point) -> float:
        excess = curve.excess(point)
        return float("-inf") if excess is None else excess.mean

    yield from sorted((p for p in points if not p.is_plain), key=height, reverse=True)
