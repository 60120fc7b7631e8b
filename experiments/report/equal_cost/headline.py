"""The README's rows on equal cost: how far the recommended network is above the curves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from ... import markdown
from ...costs import AXES
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
        for test, points in read_study(study, results, budget).items():
            member = next((point for point in points if point.name == name), None)
            if member is not None and has_curve(points):
                curves = [Curve.of(points, axis) for axis in AXES]
                if heights := ", ".join(_heights(member, curves)):
                    parts.append(f"{test}: {heights}" if test else heights)
                    seeds += [len(curve.seeds(member)) for curve in curves]
        if parts:
            what, least = STUDIES[study].title.partition(": ")[2], min(seeds)
            yield [
                f"A dynamic M, one per image, against the curve of plain networks: {what}",
                "; ".join(parts),
                markdown.link(f"{least} seed{'s' * (least != 1)}", page and f"{page}#equal-cost"),
            ]


def _heights(member: Point, curves: Sequence[Curve]) -> Iterator[str]:
    """How far a network is above each curve that reaches its cost."""
    for curve in curves:
        if (height := curve.excess(member)) is not None:
            yield f"{markdown.emphasised(height)} (equal {AXIS_NAMES[curve.axis]})"
