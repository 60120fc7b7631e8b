"""The picture of the study: accuracy versus cost, the curve of plain networks, and the others."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from neural_similarity.plot import style

from ...costs import AXES
from .curve import Curve, Point, excesses, has_curve, verdict

__all__ = ["draw_study"]

_COLOURS = {
    "static": style.PALETTE[0], "patch": style.PALETTE[1], "pixel": style.PALETTE[3],
    "image": style.PALETTE[2],
}  # fmt: skip
_MARKERS = {"taps": "o", "channels": "s", "both": "^", "channel": "D"}
_UNITS = {"parameters": 1.0, "multiply_adds": 1e-6, "seconds": 1e3}
_LABELS = {
    "parameters": "parameters",
    "multiply_adds": "multiply-adds (millions)",
    "seconds": "time per training step (ms)",
}


def draw_study(
    by_test: Mapping[str, Sequence[Point]],
    title: str,
    file: Path,
    earlier: Mapping[str, Sequence[Sequence[Point]]] | None = None,
) -> None:
    """A row of panels for every test, a panel for every kind of cost.

    ``earlier`` has, by test, the networks with the times of earlier measurements. They decide with
    the newest who lies above the curve, as in the table of verdicts.
    """
    with style.figure(11.0, 3.6 * len(by_test) + 0.7, title) as picture:
        panels = picture.subplots(len(by_test), len(AXES), sharey="row", squeeze=False)
        for row, (words, points) in zip(panels, by_test.items(), strict=True):
            before = (earlier or {}).get(words, ())
            heights = {p.name: excesses(p.name, points, before) for p in points if not p.is_plain}
            for axes, axis in zip(row, AXES, strict=True):
                winners = [n for n, of in heights.items() if verdict(of[axis]) == "above"]
                _draw_panel(axes, points, axis, winners)
                axes.set_xlabel(_LABELS[axis])
            row[0].set_ylabel(f"accuracy, {words} (%)" if words else "accuracy (%)")
        handles: dict[str, Artist] = {}
        for axes in panels.flat:
            lines, names = axes.get_legend_handles_labels()
            handles |= dict(zip(names, lines, strict=True))
        picture.legend(
            handles.values(), handles.keys(), loc="outside lower center", ncols=3, fontsize="small"
        )
        style.save(picture, file, dpi=100)


def _draw_panel(axes: Axes, points: Sequence[Point], axis: str, names: Sequence[str]) -> None:
    """Networks and the curve; those of these names lie above it."""
    curve, unit = Curve.of(points, axis), _UNITS[axis]
    if has_curve(points):
        costs = np.geomspace(*curve.ends(), 60)
        heights = [curve.at(cost) for cost in costs]
        axes.plot(unit * costs, heights, color=style.GREY, linewidth=1.2, zorder=1)
    winners = [point for point in points if point.name in names]
    for point in points:
        mean = point.accuracy.mean
        high = point.accuracy.high if len(point.by_seed) > 2 else None  # of two it would be huge
        source, _, rest = point.name.partition("-")
        span = rest.partition("-")[0]
        colour = _COLOURS.get(source, style.GREY)
        wins = point in winners
        axes.errorbar(
            [unit * point.cost[axis]], [mean], None if high is None else [high - mean],
            fmt=_MARKERS.get(span, "."), color=colour, markersize=6 if wins else 4.5,
            markerfacecolor=colour if wins or point.is_plain else "none", elinewidth=0.8,
            label="plain" if point.is_plain else _kind(point),
        )  # fmt: skip
    axes.set_xscale("log")
    _name_winners(axes, winners, axis)
    low, high = axes.get_xlim()
    close = high < 3 * low  # then a few round numbers would leave a single label
    subs = (1, 1.2, 1.4, 1.6, 2, 2.5, 3, 4, 5, 6, 7, 8, 9) if close else (1, 2, 3, 5, 7)
    axes.xaxis.set_major_locator(LogLocator(subs=subs))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.grid(axis="y")


def _kind(point: Point) -> str:
    """The words of the table, without hidden units and gate."""
    return re.sub(r", \d+ hidden units.*", "", point.title)


def _name_winners(axes: Axes, winners: Sequence[Point], axis: str) -> None:
    """Name the networks above the curve in the upper left corner, the best first."""
    ordered = sorted(winners, key=lambda point: point.accuracy.mean, reverse=True)
    for place, point in enumerate(ordered):
        source, *rest = point.name.split("-")
        axes.annotate(
            ", ".join(rest), (_UNITS[axis] * point.cost[axis], point.accuracy.mean),
            xytext=(0.25, 0.96 - 0.055 * place), textcoords="axes fraction", fontsize=8, ha="right",
            va="center", color=_COLOURS[source],
            arrowprops={
                "arrowstyle": "-", "color": style.GREY, "linewidth": 0.5, "relpos": (1, 0.5)
            },
        )  # fmt: skip
