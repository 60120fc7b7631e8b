"""The README's rows on equal cost: how far the recommended network is above the curves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from ... import markdown
from ...costs import AXES, earlier_measurements
from ...tables.equal_cost import STUDIES
from .curve import Curve, Point, has_curve
from .text import AXIS_NAMES, RECOMMENDED, read_study

__all__ = ["equal_cost_rows"]

_SHOWN = ("equal-cost-cifar-fs", "equal-cost-cifar10")


def equal_cost_rows(
    results: Path, budget: str, page: str | None = None, name: str = RECOMMENDED
) -> Iterator[list[str]]:
    """The cells of a row per study that has this network and a curve; ``page`` is for its link."""
    for study in _SHOWN:
        parts, seeds = [], []
        earlier = [
            read_study(study, results, budget, number)
            for number in earlier_measurements(results, study)
        ]
        for test, points in read_study(study, results, budget).items():
            member = _named(name, points)
            if member is not None and has_curve(points):
                curves = [Curve.of(points, axis) for axis in AXES]
                others = [by_test[test] for by_test in earlier if test in by_test]
                if heights := ", ".join(_heights(member, curves, others)):
                    parts.append(f"{test}: {heights}" if test else heights)
                    seeds += [len(curve.seeds(member)) for curve in curves]
        if parts:
            what, least = STUDIES[study].title.partition(": ")[2], min(seeds)
            yield [
                f"A dynamic M, one per image, against the curve of plain networks: {what}",
                "; ".join(parts),
                markdown.link(f"{least} seed{'s' * (least != 1)}", page and f"{page}#equal-cost"),
            ]


def _heights(
    member: Point, curves: Sequence[Curve], earlier: Sequence[Sequence[Point]]
) -> Iterator[str]:
    """How far a network is above each curve that reaches its cost.

    On the axis of time, also with the times of earlier measurements, the newest first: machines
    differ.
    """
    for curve in curves:
        heights = [curve.excess(member)]
        if curve.axis == "seconds":
            heights += [
                Curve.of(points, curve.axis).excess(same)
                for points in earlier
                if (same := _named(member.name, points)) is not None
            ]
        texts = [markdown.emphasised(height) for height in heights if height is not None]
        if texts:
            measured = ", by the newest measurement and before" if len(texts) > 1 else ""
            yield f"{' and '.join(texts)} (equal {AXIS_NAMES[curve.axis]}{measured})"


def _named(name: str, points: Sequence[Point]) -> Point | None:
    return next((point for point in points if point.name == name), None)
