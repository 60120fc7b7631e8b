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
        axes.set_xlabel("probability of the predicted class")
        axes.set_ylabel("share of correct predictions")
        axes.legend(frameon=False, loc="upper left")
        save(drawing, path)
