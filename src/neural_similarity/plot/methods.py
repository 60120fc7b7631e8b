"""Few-shot methods compared: their accuracy, and how many parameters they adapt."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from math import isfinite, log10
from typing import Any

from matplotlib.ticker import MaxNLocator

from .style import GREY, PALETTE, figure, save

__all__ = ["draw_methods"]

_SHAPES = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">", "p", "h")
_FILLS = ("full", "none", "bottom", "top")  # with the shapes, a marker for each of 48 methods
_CROWD, _APART, _FURTHEST = 0.2, 0.12, 0.1  # powers of ten
_LONG = 12  # characters; of longer names, three columns are wider than the plot
_SHORT = 20  # percent; the text of a shorter bar is longer than the bar

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
    named: set[int] = set()
    for row, of in enumerate(results.values()):
        for result in of:
            n_shot = result["n_shot"]
            place = row + (shots.index(n_shot) - (len(shots) - 1) / 2) * thick
            mean, half = _percent(result)
            axes.barh(
                place, mean, 0.92 * thick, color=colours[n_shot], xerr=half,
                label=None if n_shot in named else f"{n_shot}-shot",
                error_kw={"ecolor": "#333333", "elinewidth": 1, "capsize": 2},
            )  # fmt: skip
            named.add(n_shot)
            is_short = not mean >= _SHORT  # also of a method that diverged: it has no bar
            end = min(mean + (half or 0), 80) if mean < _SHORT else 0
            axes.text(
                end + 1.5, place,
                f"{mean:.1f}" + (f" ± {half:.1f}" if half is not None else ""),
                va="center", color="#333333" if is_short else "white", fontsize=8,
            )  # fmt: skip
    axes.set_yticks(range(len(results)), results)
    axes.set_ylim(max(len(results), 1) - 0.4, -0.6)
    ways = {result["n_way"] for of in results.values() for result in of}
    if len(ways) == 1:
        axes.axvline(100 / ways.pop(), color=GREY, linewidth=1, linestyle="--", label="chance")
    axes.set(xlabel="accuracy (%), 95% interval over episodes", xlim=(0, 100))
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=4)


def _draw_points(axes: Any, results: Results, colours: dict[int, str]) -> None:
    """Accuracy against adapted parameters; each method has a marker, as names would overlap."""
    least, most = 100.0, 0.0
    places = _apart({name: of[0]["adapted"] for name, of in results.items() if of})
    for number, (name, of) in enumerate(results.items()):
        look = {
            "marker": _SHAPES[number % len(_SHAPES)],
            "fillstyle": _FILLS[number // len(_SHAPES) % len(_FILLS)],
            "markersize": 5,
            "linestyle": "",
        }
        axes.plot([], [], color=GREY, label=name, **look)
        for result in of:
            mean, half = _percent(result)
            least, most = min(least, mean - (half or 0)), max(most, mean + (half or 0))
            axes.errorbar(
                places[name], mean, half, color=colours[result["n_shot"]], elinewidth=1, capsize=2,
                **look,
            )  # fmt: skip
    if most < least:  # all diverged
        least, most = 0.0, 100.0
    right = max(places.values(), default=0.0) + 0.3
    axes.set_xlim(-0.3, right)
    axes.set_ylim(max(0, 5 * ((least - 1) // 5)), min(100, 5 * ((most + 6) // 5)))
    # Labels such as 10,000 and 100,000 only fit side by side if there are few.
    powers = range(0, 12, 1 if right < 4 else 2)
    ticks = [n for n in (0, *(10**n for n in powers)) if log10(1 + n) <= right]
    axes.set_xticks([log10(1 + n) for n in ticks], [f"{n:,}" for n in ticks])
    axes.yaxis.set_major_locator(MaxNLocator(8, integer=True))
    axes.grid(axis="y")
    axes.set(xlabel="adapted parameters (similar ones side by side)", ylabel="accuracy (%)")
    columns = 3 if all(len(name) <= _LONG for name in results) else 2
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=columns)


def _percent(result: Mapping[str, Any]) -> tuple[float, float | None]:
    """An accuracy and the half of its interval; one episode has no interval."""
    half = 100 * result["interval"]
    return 100 * result["mean"], half if isfinite(half) else None


def _apart(adapted: Mapping[str, int]) -> dict[str, float]:
    """Positions of methods on a logarithmic axis; those of a crowd are moved apart.

    No position moves by more than a tenth of a power of ten, however large the crowd, so that the
    axis can still be read.

    >>> {name: round(place, 2) for name, place in _apart({"a": 99, "b": 0, "c": 99}).items()}
    {'b': 0.0, 'a': 1.94, 'c': 2.06}
    """
    crowds: list[list[str]] = []
    last = -_CROWD
    for name, parameters in sorted(adapted.items(), key=lambda pair: pair[1]):
        place = log10(1 + parameters)
        if place - last >= _CROWD:
            crowds.append([])
        crowds[-1].append(name)
        last = place
    places: dict[str, float] = {}
    for crowd in crowds:
        step = min(_APART, 2 * _FURTHEST / max(len(crowd) - 1, 1))
        for number, name in enumerate(crowd):
            aside = (number - (len(crowd) - 1) / 2) * step
            places[name] = log10(1 + adapted[name]) + aside
    return places
