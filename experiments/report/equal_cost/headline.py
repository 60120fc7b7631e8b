"""The README's rows on equal cost: how far the recommended network is above each curve."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ...costs import AXES
from ...tables.equal_cost import STUDIES
from ..cells import NONE, signed
from .curve import Point, above_curve, frontier, has_curve, verdict
from .text import AXIS_NAMES, RECOMMENDED, read_study

__all__ = ["HEAD", "equal_cost_rows"]

HEAD = ("network and data", *(f"equal {AXIS_NAMES[axis]}" for axis in AXES), "seeds")


def equal_cost_rows(results: Path, budget: str, name: str = RECOMMENDED) -> Iterator[list[str]]:
    """The cells of a row for every test of every study that has this network and a curve."""
    for study_name, study in STUDIES.items():
        for test, points in read_study(study_name, results, budget).items():
            member = next((point for point in points if point.name == name), None)
            if member is not None and has_curve(points):
                what = study.title.partition(": ")[2]
                yield [
                    f"{what}, {test}" if test else what,
                    *(_height(member, points, axis) for axis in AXES),
                    str(len(member.by_seed)),
                ]


def _height(member: Point, points: list[Point], axis: str) -> str:
    """How far a network is above the curve; bold if it is separated from it."""
    height = above_curve(member, frontier(points, axis), axis)
    if height is None:
        return NONE
    text = signed(height, brief=True)
    return f"**{text}**" if verdict(height) in ("above", "below") else text
