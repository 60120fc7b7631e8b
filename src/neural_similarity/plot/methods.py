"""Few-shot methods side by side: how often they are right, and how much they adapt for it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from .style import GREY, PALETTE, figure, save

__all__ = ["draw_methods"]

_SHAPES = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">", "p", "h")

Results = Mapping[str, Sequence[Mapping[str, Any]]]


def draw_methods(results: Results, path: str | os.PathLike[str], title: str | None = None) -> None:
    """Draw accuracies with their intervals, and beside numbers adapted, as PNG.

    Args:
        results: by method, one a number of shots: ``n_shot``, ``n_way``, ``mean``, ``interval``
            (shares between 0 and 1) and ``adapted``.
        path: the picture.
        title: above it.
    """
    shots = sorted({result["n_shot"] for of in results.values() for result in of})
    colours = {n_shot: PALETTE[place % len(PALETTE)] for place, n_shot in enumerate(shots)}
    high = max(2.6, 0.9 + len(results) * (0.22 + 0.17 * len(shots)))
    with figure(9.6, high, title) as made:
        bars, points = made.subplots(1, 2, width_ratios=(3, 2))
        _draw_bars(bars, results, shots, colours)
        _draw_points(points, results, colours)
        save(made, path)


def _draw_bars(axes: Any, results: Results, shots: list[int], colours: dict[int, str]) -> None:
    """A group of bars a method, the first on top."""
    thick = 0.8 / max(len(shots), 1)
    for row, of in enumerate(results.values()):
        for result in of:
            offset = (shots.index(result["n_shot"]) - (len(shots) - 1) / 2) * thick
            mean, half = 100 * result["mean"], 100 * result["interval"]
            label = f"{result['n_shot']}-shot" if row == 0 else None
            axes.barh(
                row + offset, mean, 0.92 * thick, color=colours[result["n_shot"]], label=label,
                xerr=half, error_kw={"ecolor": "#333333", "elinewidth": 1, "capsize": 2},
            )  # fmt: skip
            axes.text(1.5, row + offset, f"{mean:.1f} ± {half:.1f}", va="center", color="white",
                      fontsize=8)  # fmt: skip
    axes.set_yticks(range(len(results)), results)
    axes.invert_yaxis()
    ways = {result["n_way"] for of in results.values() for result in of}
    if len(ways) == 1:
        axes.axvline(100 / ways.pop(), color=GREY, linewidth=1, linestyle="--", label="chance")
    axes.set(xlabel="accuracy (%), 95 % interval over episodes", xlim=(0, 100))
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=4)


def _draw_points(axes: Any, results: Results, colours: dict[int, str]) -> None:
    """Accuracy over numbers adapted; a method is a shape, as names would lie over each other."""
    most, least = 1, 100.0
    for place, (name, of) in enumerate(results.items()):
        shape = _SHAPES[place % len(_SHAPES)]
        axes.plot([], [], shape, color=GREY, markersize=5, label=name)
        for result in of:
            mean, half = 100 * result["mean"], 100 * result["interval"]
            most, least = max(most, result["adapted"]), min(least, mean - half)
            axes.errorbar(
                result["adapted"], mean, half, fmt=shape, color=colours[result["n_shot"]],
                markersize=5, elinewidth=1, capsize=2, alpha=0.85,
            )  # fmt: skip
    axes.set_xscale("symlog", linthresh=1)
    axes.set_xlim(-0.5, 5 * most)
    axes.set_ylim(max(0, 10 * ((least - 2) // 10)), 100)
    decades = [10**n for n in range(12) if 10**n <= 5 * most]
    axes.xaxis.set_major_locator(FixedLocator([0, *decades]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.grid(axis="y")
    axes.set(xlabel="numbers adapted in an episode", ylabel="accuracy (%)")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=4)
