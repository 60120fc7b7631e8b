"""Few-shot methods compared: their accuracy, and how many parameters they adapt."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from math import inf, log10
from typing import Any

from matplotlib.ticker import MaxNLocator

from .style import GREY, PALETTE, figure, save

__all__ = ["draw_methods"]

_SHAPES = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">", "p", "h")
_APART = 0.12  # powers of ten

Results = Mapping[str, Sequence[Mapping[str, Any]]]


def draw_methods(results: Results, path: str | os.PathLike[str], title: str | None = None) -> None:
    """Draw accuracies with their intervals, and accuracy against adapted parameters, as PNG.

    Args:
        results: for each method, one entry per number of shots: ``n_shot``, ``n_way``, ``mean``,
            ``interval`` (shares between 0 and 1) and ``adapted`` (adapted parameters).
        path: the PNG file.
        title: the title of the plot.
    """
    shots = sorted({result["n_shot"] for of in results.values() for result in of})
    colours = {n_shot: PALETTE[place % len(PALETTE)] for place, n_shot in enumerate(shots)}
    high = max(2.6, 0.9 + len(results) * (0.22 + 0.17 * len(shots)))
    with figure(9.6, high, title) as drawing:
        bars, points = drawing.subplots(1, 2, width_ratios=(3, 2))
        _draw_bars(bars, results, shots, colours)
        _draw_points(points, results, colours)
        save(drawing, path)


def _draw_bars(axes: Any, results: Results, shots: list[int], colours: dict[int, str]) -> None:
    """One group of bars per method, the first on top."""
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
    axes.set(xlabel="accuracy (%), 95% interval over episodes", xlim=(0, 100))
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=4)


def _draw_points(axes: Any, results: Results, colours: dict[int, str]) -> None:
    """Accuracy against adapted parameters; each method has a marker, as names would overlap."""
    least = 100.0
    places = _apart({name: of[0]["adapted"] for name, of in results.items() if of})
    for number, (name, of) in enumerate(results.items()):
        shape = _SHAPES[number % len(_SHAPES)]
        axes.plot([], [], shape, color=GREY, markersize=5, label=name)
        for result in of:
            mean, half = 100 * result["mean"], 100 * result["interval"]
            least = min(least, mean - half)
            axes.errorbar(
                places[name], mean, half, fmt=shape, color=colours[result["n_shot"]],
                markersize=5, elinewidth=1, capsize=2,
            )  # fmt: skip
    right = max(places.values(), default=0.0) + 0.3
    axes.set_xlim(-0.3, right)
    axes.set_ylim(max(0, 5 * ((least - 1) // 5)), 100)
    ticks = [n for n in (0, *(10**n for n in range(12))) if log10(1 + n) <= right]
    axes.set_xticks([log10(1 + n) for n in ticks], [f"{n:,}" for n in ticks])
    axes.yaxis.set_major_locator(MaxNLocator(8, integer=True))
    axes.grid(axis="y")
    axes.set(xlabel="adapted parameters (equal ones side by side)", ylabel="accuracy (%)")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=3)


def _apart(adapted: Mapping[str, int]) -> dict[str, float]:
    """Positions of methods on a logarithmic axis; those that would overlap are side by side.

    >>> {name: round(place, 2) for name, place in _apart({"a": 99, "b": 0, "c": 99}).items()}
    {'b': 0.0, 'a': 2.0, 'c': 2.12}
    """
    places: dict[str, float] = {}
    last = -inf
    for name, parameters in sorted(adapted.items(), key=lambda pair: pair[1]):
        last = places[name] = max(log10(1 + parameters), last + _APART)
    return places
