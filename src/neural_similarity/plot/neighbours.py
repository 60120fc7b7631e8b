"""Explain a prediction: an image next to its nearest training examples."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from .style import GREY, PALETTE, figure, save

__all__ = ["Explained", "draw_neighbours"]

_LONGEST = 20


@dataclass(frozen=True)
class Explained:
    """An image with its nearest examples; pictures are uint8 ``(H, W)`` or ``(H, W, 3)``."""

    name: str
    picture: NDArray[np.uint8]
    predicted: str
    probability: float
    examples: Sequence[tuple[NDArray[np.uint8], str, float]]
    """Picture, class and cosine of the features (from −1 to 1) of each example, nearest first."""
    is_known: bool = True
    """Whether the image is like one of the classes; if not, it is none of these."""


def draw_neighbours(rows: Sequence[Explained], path: str | os.PathLike[str]) -> None:
    """Write a PNG with one row per image: the image, then its nearest training examples.

    Examples of the most probable class have a blue frame, others an orange one. An
    image unlike every class is called "none of these".
    """
    columns = 1 + max(len(row.examples) for row in rows)
    with figure(1.5 * columns + 0.4, 1.85 * len(rows) + 0.5) as drawing:
        drawing.suptitle(
            "Images and nearest training examples\n"
            "(blue: of the most probable class, orange: of another class)",
            fontsize=9,
        )
        grid = drawing.subplots(len(rows), columns, squeeze=False)
        for axes, row in zip(grid, rows, strict=True):
            for unused in axes:
                unused.set_axis_off()
            title = f"{row.predicted} {row.probability:.0%}" if row.is_known else "none of these"
            _show(axes[0], row.picture, title, row.name, None)
            for panel, (picture, label, cosine) in zip(axes[1:], row.examples, strict=False):
                colour = PALETTE[0] if label == row.predicted else PALETTE[1]
                _show(panel, picture, label, f"cosine {cosine:.2f}", colour)
        save(drawing, path)


def _show(
    axes: Axes, picture: NDArray[np.uint8], above: str, below: str, frame: str | None
) -> None:
    axes.set_axis_on()
    grey = {"cmap": "gray", "vmin": 0, "vmax": 255} if picture.ndim == 2 else {}
    axes.imshow(picture, interpolation="nearest", **grey)  # type: ignore[arg-type]
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_title(_short(above), fontsize=8, fontweight="bold" if frame is None else "normal")
    axes.set_xlabel(_short(below), fontsize=7, color=GREY)
    for spine in axes.spines.values():
        spine.set_visible(frame is not None)
        spine.set_color(frame or GREY)
        spine.set_linewidth(2.0)


def _short(text: str) -> str:
    """Text short enough for a title."""
    half = (_LONGEST - 1) // 2
    return text if len(text) <= _LONGEST else f"{text[:half]}…{text[-half:]}"
