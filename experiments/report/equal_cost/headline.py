"""How far recommended networks are above the curves: rows for the README and for the guide."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ... import markdown
from ...costs import AXES
from ...intervals import Estimate
from ...tables.equal_cost import STUDIES
from ..cells import NONE
from .curve import Curve, excesses
from .text import AXIS_NAMES, RECOMMENDED, earlier_studies, read_study, study_words

__all__ = ["equal_cost_rows", "guide_text"]

_IN_README = ("equal-cost-cifar-fs", "equal-cost-cifar10")
_IN_GUIDE = {"2·sigmoid": RECOMMENDED, "1 + tanh": f"{RECOMMENDED}-tanh"}  # by gate


def equal_cost_rows(
    results: Path, budget: str, page: str | None = None, name: str = RECOMMENDED
) -> Iterator[list[str]]:
    """The README's cells: a row per study that has this network and a curve.

    ``page`` is for its link.
    """
    for study in _IN_README:
        parts, counts = [], []
        for test, heights, seeds in _heights(study, results, budget, name):
            texts = (
                f"{markdown.emphasised(height)} ({AXIS_NAMES[axis]})"
                for axis, height in zip(AXES, heights, strict=True)
                if height is not None
            )
            parts.append(f"{test}{test and ': '}{', '.join(texts)}")
            counts.append(seeds)
        if parts:
            least = min(counts)
            yield [
                f"One M per image against plain networks of equal cost: {study_words(study)}",
                "; ".join(parts),
                markdown.link(f"{least} seed{'s' * (least != 1)}", page and f"{page}#equal-cost"),
            ]


def guide_text(results: Path, budget: str) -> str:
    """A table for the guide: how far two networks are above the curves, over several seeds."""
    by_place: dict[str, list[list[str]]] = {}
    for study in STUDIES:
        for gate, name in _IN_GUIDE.items():
            for test, heights, seeds in _heights(study, results, budget, name):
                if seeds < 2:
                    continue
                place = f"{study_words(study)}{test and f', {test}'}"
                cells = (NONE if h is None else markdown.emphasised(h) for h in heights)
                by_place.setdefault(place, []).append([place, gate, str(seeds), *cells])
    head = ["study", "gate", "seeds", *(f"equal {AXIS_NAMES[axis]}" for axis in AXES)]
    rows = [row for rows in by_place.values() for row in rows]
    return markdown.table(head, rows) if rows else "There are no results yet."


def _heights(
    study: str, results: Path, budget: str, name: str
) -> Iterator[tuple[str, list[Estimate | None], int]]:
    """By test: how far a network is above each curve, and the fewest seeds of a comparison.

    Nothing where it reaches no curve.
    """
    for test, points in read_study(study, results, budget).items():
        found = excesses(name, points, earlier_studies(study, results, budget, test))
        if any(height is not None for height in found.values()):
            (member,) = (point for point in points if point.name == name)
            curves = (Curve.of(points, axis) for axis in AXES if found[axis] is not None)
            counts = [count for curve in curves if (count := len(curve.seeds(member)))]
            yield test, list(found.values()), min(counts)
