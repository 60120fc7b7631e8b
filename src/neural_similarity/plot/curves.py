"""Training curves of one run, and of several to compare."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from .style import GREY, PALETTE, figure, save

__all__ = ["draw_comparison", "draw_run"]

Metrics = Sequence[Mapping[str, Any]]

_WORTH_A_LOGARITHM = 8.0  # the largest error over the smallest
_MOST_MARKED = 40  # points; with more, markers hide the line
# With seven colours, the pairs of line and marker differ for 140 runs.
_LINES, _MARKERS = ("-", "--", ":", "-."), ("o", "s", "^", "D", "v")


def draw_run(
    metrics: Metrics, path: str | os.PathLike[str], title: str, measured: str = "test"
) -> None:
    """Draw loss, error and learning rate of one run over its steps, as PNG.

    Args:
        metrics: lines with ``kind`` ``"train"`` (``step``, ``loss``, ``error``, ``lr``) or
            ``"eval"`` (``step``, ``loss``, ``error``); errors are shares between 0 and 1. A value
            that a run does not measure may be missing.
        path: the PNG file.
        title: the title of the plot.
        measured: the label of the evaluation curve.
    """
    train, test = _split(metrics)
    with figure(6.4, 6.2, title) as drawing:
        loss, error, rate = drawing.subplots(3, sharex=True, height_ratios=(3, 3, 1))
        for axes, key, scale in ((loss, "loss", 1.0), (error, "error", 100.0)):
            steps, values = _curve(train, "step", key, scale)
            axes.plot(
                steps, values, color=GREY, linewidth=1, label="training",
                marker=_marker(steps), markersize=3.5,
            )  # fmt: skip
            marker = "o" if len(test) <= _MOST_MARKED else ""
            axes.plot(
                *_curve(test, "step", key, scale),
                color=PALETTE[0], marker=marker, markersize=3.5, label=measured,
            )  # fmt: skip
            axes.grid(axis="y")
        loss.set_ylabel("loss")
        losses = [line["loss"] for line in (*train, *test) if "loss" in line]
        if finite := [value for value in losses if math.isfinite(value) and value > 0]:
            _set_logarithmic(loss, min(finite), max(finite))
        loss.legend()
        error.set_ylabel("error (%)")
        _from_zero(error, [100 * line["error"] for line in (*train, *test) if "error" in line])
        steps, rates = _curve(train, "step", "lr")
        rate.plot(steps, rates, color=GREY, linewidth=1, marker=_marker(steps), markersize=3.5)
        rate.set(ylabel="learning\nrate", xlabel="step")
        _from_zero(rate, rates)
        drawing.align_ylabels()
        save(drawing, path)


def draw_comparison(
    runs: Mapping[str, Metrics], path: str | os.PathLike[str], measured: str = "test"
) -> None:
    """Draw the errors of several runs over epochs and over training time, as PNG.

    Args:
        runs: metrics by the run's name, as :func:`draw_run` takes them.
        path: the PNG file.
        measured: what the runs were evaluated on, such as ``"test"``.
    """
    with figure(9.0, 3.8) as drawing:
        panels = drawing.subplots(1, 2, sharey=True)
        errors: list[float] = []
        for number, (name, metrics) in enumerate(runs.items()):
            _, test = _split(metrics)
            look = {
                "color": PALETTE[number % len(PALETTE)],
                # Colours of similar lightness look the same in a grey print.
                "linestyle": _LINES[number % len(_LINES)],
                "marker": _MARKERS[number % len(_MARKERS)] if len(test) <= _MOST_MARKED else "",
                "markersize": 3.5,
            }
            for axes, key in zip(panels, ("epoch", "seconds"), strict=True):
                x, y = _curve(test, key, "error", 100.0)
                axes.plot(x, y, label=name, **look)
                errors += y
        panels[0].set(xlabel="epoch", ylabel=f"{measured} error (%)")
        panels[1].set_xlabel("training time (s)")
        for axes in panels:
            axes.set_xlim(left=0)
            axes.grid(axis="y")
        _scale_errors(panels[0], errors)
        if runs:
            panels[1].legend()
        save(drawing, path)


def _split(metrics: Metrics) -> tuple[Metrics, Metrics]:
    train = [line for line in metrics if line["kind"] == "train"]
    return train, [line for line in metrics if line["kind"] == "eval"]


def _curve(lines: Metrics, x: str, y: str, scale: float = 1.0) -> tuple[list[float], list[float]]:
    points = [line for line in lines if y in line]
    return [line[x] for line in points], [scale * line[y] for line in points]


def _marker(points: Sequence[float]) -> str:
    """A line of one point is invisible without a marker."""
    return "o" if len(points) == 1 else ""


def _from_zero(axes: Axes, values: Sequence[float]) -> None:
    """An axis from zero to a little above the largest value."""
    largest = max((value for value in values if math.isfinite(value)), default=0.0)
    axes.set_ylim(0, 1.05 * largest if largest > 0 else 1.0)


def _scale_errors(axes: Axes, errors: Sequence[float]) -> None:
    """A logarithmic axis if the errors span a wide range and none is zero; plain numbers always."""
    finite = [e for e in errors if math.isfinite(e)]
    if not finite or min(finite) <= 0 or max(finite) < _WORTH_A_LOGARITHM * min(finite):
        _from_zero(axes, finite)
        return
    _set_logarithmic(axes, min(finite), max(finite))


def _set_logarithmic(axes: Axes, smallest: float, largest: float) -> None:
    """A logarithmic axis for such values, with plain numbers on it."""
    axes.set_yscale("log")
    low, high = smallest / 1.15, largest * 1.15
    axes.set_ylim(low, high)
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1,) if high > 1e4 * low else (1, 2, 5)  # not too many labels
    ticks = [m * 10.0**d for d in decades for m in steps if low <= m * 10.0**d <= high]
    # A narrow range may hold none of these round numbers.
    axes.yaxis.set_major_locator(FixedLocator(ticks) if len(ticks) > 2 else MaxNLocator(5))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_locator(NullLocator())
