"""The curve of plain networks over their cost, and how far other networks are above it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import log

from ...intervals import Estimate, over_seeds
from ...tables.equal_cost import PLAIN
from ..row_results import RowResults, find_test

__all__ = ["Point", "above_curve", "best_first", "frontier", "has_curve", "points_of", "verdict"]


@dataclass(frozen=True)
class Point:
    """A network: what it costs, and its accuracy in percent by seed."""

    name: str
    title: str
    cost: Mapping[str, float]
    by_seed: Mapping[int, float]

    @property
    def accuracy(self) -> Estimate:
        return over_seeds(list(self.by_seed.values()))

    @property
    def is_plain(self) -> bool:
        return self.name.startswith(PLAIN)


def points_of(
    rows: Mapping[str, RowResults], costs: Mapping[str, Mapping[str, float]], shots: int | None
) -> list[Point]:
    """Networks that were tested; ``shots`` chooses the test of a few-shot study."""

    def accuracy(record: Mapping[str, object]) -> float:
        if shots is None:
            return 100 - 100 * float(record["error"])  # type: ignore[arg-type]
        return 100 * float(find_test(dict(record), shots)["mean"])

    return [
        Point(
            name, row.row.title, costs[name],
            {seed: accuracy(record) for seed, record in row.finished.items()},
        )
        for name, row in rows.items() if row.tested and name in costs
    ]  # fmt: skip


def frontier(points: Sequence[Point], axis: str) -> list[Point]:
    """Plain networks by rising cost, without those that a cheaper one equals.

    Some widths are slow on a processor. Nobody would choose such a network, so it is no yardstick.
    """
    kept: list[Point] = []
    for point in sorted((p for p in points if p.is_plain), key=lambda p: p.cost[axis]):
        if not kept or _is_better(point, kept[-1]):
            kept.append(point)
    return kept


def _is_better(point: Point, cheaper: Point) -> bool:
    """On the seeds that both have: one of them may have a single, lucky one."""
    seeds = point.by_seed.keys() & cheaper.by_seed.keys()
    if not seeds:
        return point.accuracy.mean > cheaper.accuracy.mean
    return sum(point.by_seed[s] - cheaper.by_seed[s] for s in seeds) > 0


def has_curve(points: Sequence[Point]) -> bool:
    """Whether there are plain networks to compare with."""
    return sum(point.is_plain for point in points) > 1


def above_curve(point: Point, plain: Sequence[Point], axis: str) -> Estimate | None:
    """Points of accuracy above the curve at the same cost, paired by seed.

    Between two plain networks the curve is linear in log cost. None outside the curve, and for a
    network that has no seed in common with its neighbours on the curve.
    """
    between = _neighbours(plain, point.cost[axis], axis)
    if between is None:
        return None
    cheaper, dearer, share = between
    seeds = [s for s in point.by_seed if s in cheaper.by_seed and s in dearer.by_seed]
    if not seeds:
        return None
    return over_seeds(
        [
            point.by_seed[s] - (1 - share) * cheaper.by_seed[s] - share * dearer.by_seed[s]
            for s in seeds
        ]
    )


def _neighbours(
    plain: Sequence[Point], cost: float, axis: str
) -> tuple[Point, Point, float] | None:
    """The plain networks on both sides of a cost, and how far between them it is."""
    for cheaper, dearer in pairwise(plain):
        low, high = cheaper.cost[axis], dearer.cost[axis]
        if low <= cost <= high:
            return cheaper, dearer, log(cost / low) / log(high / low)
    return None


def verdict(excess: Estimate | None) -> str:
    """In words: above the curve, on it, below it, or not known yet."""
    if excess is None:
        return "outside the curve"
    if excess.low is None or excess.high is None:
        return "one seed"
    if excess.low > 0:
        return "above"
    return "below" if excess.high < 0 else "on the curve"


def best_first(points: Sequence[Point], plain: Sequence[Point], axis: str) -> Iterator[Point]:
    """Networks with a similarity, the highest above the curve first."""

    def height(point: Point) -> float:
        excess = above_curve(point, plain, axis)
        return float("-inf") if excess is None else excess.mean

    yield from sorted((p for p in points if not p.is_plain), key=height, reverse=True)
