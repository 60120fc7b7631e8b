"""The report's pictures: error over epochs, and accuracy over parameters adapted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, log10
from pathlib import Path
from statistics import fmean

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from neural_similarity.plot import style

from ..intervals import Estimate
from ..tables.base import Row
from .comparison import Comparison
from .row_results import RowResults

__all__ = ["draw_accuracy", "draw_error", "spread"]

_LINES = {
    "cnn": "-", "static-diagonal": "-", "dynamic-diagonal": "-", "cnn-plus": "--",
    "static-unconstrained": "--", "dynamic-unconstrained": "--", "cnn-lower-rate": ":",
    "dynamic-lower-rate": ":", "cnn-plus-lower-rate": "-.",
}  # fmt: skip
"""Rows of Table 4 in the picture, and their lines; others would look like these."""

_SHORT_NAMES = {
    "ridge": "R2D2", "baseline-pp": "Baseline++", "wide-time": "finetune, twice the filters",
    "wide-parameters": "finetune, wider", "finetune-as-meta": "finetune, inner steps",
    "meta-static-small": "meta-static, rate 0.02", "proto-pretrained": "proto, pretrained",
}  # fmt: skip
_DPI = 100  # small files, as these pictures are in the repository
_NAME, _ASIDE, _LINE = 95, 14, 11  # in points: width of a name, gap before it, its height
_ROOM = 300  # the end of the axis over the largest number of parameters: room for the last names


def draw_error(rows: Mapping[str, RowResults], file: Path) -> None:
    """Test error over epochs: mean over seeds, and their spread."""
    with style.figure(7.0, 4.4) as picture:
        axes = picture.subplots()
        for results in rows.values():
            curves = [record["metrics"]["eval"] for record in results.finished.values()]
            if curves and results.row.name in _LINES:
                _draw_spread(axes, results.row, curves)
        axes.set(xlabel="epoch", ylabel="test error (%)")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(axis="y")
        picture.legend(loc="outside lower center", ncols=2)
        style.save(picture, file, dpi=_DPI)


def _draw_spread(axes: Axes, row: Row, curves: Sequence[dict[str, list[float]]]) -> None:
    """A line through the means; a band from the best seed to the worst."""
    errors = list(zip(*(curve["error"] for curve in curves), strict=False))
    x = curves[0]["epoch"][: len(errors)]
    colour = _colour(row)
    axes.plot(
        x, [100 * fmean(values) for values in errors], label=row.title, color=colour,
        linestyle=_LINES[row.name], marker="o" if len(x) <= 40 else "", markersize=3.5,
    )  # fmt: skip
    low, high = ([100 * of(values) for values in errors] for of in (min, max))
    axes.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)


def _colour(row: Row) -> str:
    kinds = {"static": style.PALETTE[0], "dynamic": style.PALETTE[1]}
    title = row.title.lower()
    matches = (c for kind, c in kinds.items() if kind in row.name or title.startswith(kind))
    return next(matches, style.GREY)


def draw_accuracy(by_shots: Mapping[int, Sequence[Comparison]], file: Path) -> None:
    """Accuracy versus parameters adapted per episode, a panel for each number of shots.

    Methods that adapt nothing have an axis of their own: a logarithmic one has no zero.
    """
    with style.figure(6.2 * len(by_shots), 5.0) as picture:
        panels: dict[Axes, list[Point]] = {}
        parts = picture.subfigures(1, len(by_shots), squeeze=False)[0]
        for part, (shots, comparisons) in zip(parts, by_shots.items(), strict=True):
            points = _points(comparisons)
            part.suptitle(f"{shots} shot{'s' * (shots > 1)}", fontsize=10)
            zero, rest = part.subplots(1, 2, sharey=True, width_ratios=(1, 2))
            panels[zero] = [point for point in points if not point.comparison.adapted]
            panels[rest] = [point for point in points if point.comparison.adapted]
            zero.set(ylabel="accuracy (%)", xlim=(-0.15, 1), xticks=[0])
            rest.set_xlabel("parameters adapted per episode")
            rest.tick_params(left=False)
            rest.spines["left"].set_visible(False)
            _logarithmic(rest)
        for axes, points in panels.items():
            _draw_points(axes, points)
        picture.draw_without_rendering()  # only then positions on paper are known
        for axes, points in panels.items():
            _name_points(axes, points)
        style.save(picture, file, dpi=_DPI)


@dataclass(frozen=True)
class Point:
    """A row's place in the picture."""

    comparison: Comparison
    ours: Estimate
    x: float

    @property
    def colour(self) -> str:
        return _colour(self.comparison.row)


def _points(comparisons: Sequence[Comparison]) -> list[Point]:
    """Lowest first; moved sideways in turn, so that no interval hides another."""
    rows = [(one, one.ours, one.adapted or 0) for one in comparisons if one.ours is not None]
    rows.sort(key=lambda row: row[1].mean)
    turns = [place % 3 - 1 for place in range(len(rows))]
    return [
        Point(one, ours, adapted * 1.1**turn if adapted else 0.05 * turn)
        for (one, ours, adapted), turn in zip(rows, turns, strict=True)
    ]


def _draw_points(axes: Axes, points: Sequence[Point]) -> None:
    for point in points:
        mean, low, high = point.ours.mean, point.ours.low, point.ours.high
        ends = None if low is None or high is None else [[mean - low], [high - mean]]
        axes.errorbar(
            [point.x], [mean], ends, fmt="o", color=point.colour, markersize=4.5, elinewidth=1,
            capsize=2,
        )  # fmt: skip
    if axes.get_xscale() == "log" and points:
        least, most = (of(point.x for point in points) for of in (min, max))
        axes.set_xlim(0.8 * least, _ROOM * most)
        # Numbers below the names would look like results.
        powers = range(ceil(log10(0.8 * least)), floor(log10(most)) + 1)
        axes.xaxis.set_major_locator(FixedLocator([10.0**power for power in powers]))
    axes.grid(axis="y")


def _name_points(axes: Axes, points: Sequence[Point]) -> None:
    """Names in columns, each to the right of a crowd of points; no name covers another."""
    on_paper = [axes.transData.transform((p.x, p.ours.mean)) * 72 / axes.figure.dpi for p in points]
    for crowd in _crowds([x for x, _ in on_paper]):
        right = max(on_paper[place][0] for place in crowd) + _ASIDE
        heights = spread([on_paper[place][1] for place in crowd], _LINE)
        for place, height in zip(crowd, heights, strict=True):
            point, (x, y) = points[place], on_paper[place]
            name = point.comparison.row.name
            axes.annotate(
                _SHORT_NAMES.get(name, name), (point.x, point.ours.mean), (right - x, height - y),
                textcoords="offset points", fontsize=8, va="center", color=point.colour,
                arrowprops={"arrowstyle": "-", "color": style.GREY, "linewidth": 0.5, "shrinkB": 3},
            ).set_in_layout(False)  # fmt: skip


def _crowds(x: Sequence[float]) -> list[list[int]]:
    """Groups of points with no room for a name between them, as indices."""
    crowds: list[list[int]] = []
    last = float("-inf")
    for place in sorted(range(len(x)), key=lambda place: x[place]):
        if x[place] - last > _NAME:
            crowds.append([])
        crowds[-1].append(place)
        last = x[place]
    return [sorted(crowd) for crowd in crowds]


def spread(heights: Sequence[float], gap: float) -> list[float]:
    """Ascending heights, moved as little as possible so that neighbours keep a gap (least squares).

    >>> spread([0.0, 1.0, 10.0], gap=3.0)
    [-1.0, 2.0, 10.0]
    """
    # Without the gaps this is isotonic regression: heights that are out of order share a mean.
    shared: list[list[float]] = []
    for place, height in enumerate(heights):
        shared.append([height - place * gap])
        while len(shared) > 1 and fmean(shared[-2]) > fmean(shared[-1]):
            shared[-2:] = [shared[-2] + shared[-1]]
    level = [fmean(block) for block in shared for _ in block]
    return [of + place * gap for place, of in enumerate(level)]


def _logarithmic(axes: Axes) -> None:
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axes.xaxis.set_minor_locator(NullLocator())
