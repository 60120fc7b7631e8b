"""The reliability diagram: accuracy against confidence."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from .style import GREY, PALETTE, figure, save

__all__ = ["draw_calibration"]


def draw_calibration(
    curves: Mapping[str, Sequence[tuple[float, float, int]]], path: str | os.PathLike[str]
) -> None:
    """Write a PNG of accuracy against confidence.

    Args:
        curves: for every curve its points: mean confidence, accuracy and number of images.
        path: the PNG file.
    """
    with figure(4.6, 4.2) as drawing:
        axes = drawing.add_subplot()
        axes.plot([0, 1], [0, 1], color=GREY, linewidth=1, linestyle="--")
        for place, (name, points) in enumerate(curves.items()):
            confidence = [point[0] for point in points]
            accuracy = [point[1] for point in points]
            look = ("o-", "s:")[place % 2]  # curves may overlap
            axes.plot(
                confidence, accuracy, look, color=PALETTE[place], label=name,
                markersize=4 + 4 * place, markerfacecolor=(PALETTE[place], "none")[place % 2],
            )  # fmt: skip
        axes.set_xlim(0, 1.02)
        axes.set_ylim(0, 1.02)
        counts = [count for points in curves.values() for *_, count in points]
        axes.set_xlabel(f"probability of the predicted class{_per_point(counts)}")
        axes.set_ylabel("share of correct predictions")
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1))  # no curve runs through it
        save(drawing, path)


def _per_point(counts: Sequence[int]) -> str:
    """How many images a point has: a share of few is uncertain.

    >>> _per_point([12, 13, 12])
    '\\n(12 to 13 images per point)'
    """
    if not counts:
        return ""
    low, high = min(counts), max(counts)
    span = f"{low}" if low == high else f"{low} to {high}"
    return f"\n({span} image{'s' * (high != 1)} per point)"
