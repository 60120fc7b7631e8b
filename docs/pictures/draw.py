"""Draws static, dynamic and global similarity side by side: ``similarity.svg``, ``similarity.png``.

Run: ``python docs/pictures/draw.py [FOLDER]`` (the folder of this file by default).
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle
from numpy.typing import NDArray

INK, SOFT, CARD = "#1f2937", "#6b7280", "#ffffff"
ACCENT = "#e8590c"  # M, and nothing else
GREYS = LinearSegmentedColormap.from_list("greys", ["#f3f4f6", "#9ca3af"])
ORANGES = LinearSegmentedColormap.from_list("oranges", ["#fff4e6", ACCENT])

WIDTH, HEIGHT = 4.6, 4.6  # of a panel
MIDDLE = 2.45  # height of the row W · M · X
KERNEL, MATRIX, MAP = 0.78, 1.08, 1.3  # sides of the three
AT_W, AT_M, AT_X = 0.71, 2.05, 3.65  # their centres, from left to right

STYLE = {
    "font.family": "DejaVu Sans",
    "mathtext.fontset": "stix",
    "svg.fonttype": "path",  # looks the same wherever it is opened
    "svg.hashsalt": "neural-similarity",  # the same file from the same drawing
}


def main(folder: Path) -> None:
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(3 * WIDTH, HEIGHT), facecolor=CARD)
        for place, draw in enumerate((draw_static, draw_dynamic, draw_global)):
            axes = figure.add_axes((place / 3, 0, 1 / 3, 1))
            axes.set(xlim=(0, WIDTH), ylim=(0, HEIGHT), aspect="equal")
            axes.axis("off")
            draw(axes)
            if place:
                axes.plot([0.02, 0.02], [0.35, HEIGHT - 0.35], color="#e5e7eb", linewidth=1)
        figure.savefig(folder / "similarity.svg", metadata={"Date": None})
        figure.savefig(folder / "similarity.png", dpi=200, metadata={"Software": None})


def draw_static(axes: Axes) -> None:
    heading(axes, "Static", "one M for the whole layer, learned")
    product(axes, diagonal(), r"$X$", "patch")
    window(axes, 1, 1)
    # Below: W and M make one plain kernel.
    bracket(axes, AT_W - KERNEL / 2, AT_M + MATRIX / 2, 1.62)
    arrow(axes, (1.46, 1.52), (1.46, 1.24))
    grid(axes, 1.46, 0.88, 0.58, random((3, 3), 4), GREYS)
    axes.text(1.92, 0.98, r"$\hat{W} = M^{\!\top} W$", color=INK, fontsize=14, va="center")
    axes.text(1.92, 0.72, "merged: a plain convolution", color=SOFT, fontsize=9.5, va="center")
    formula(axes, r"$y = W^{\!\top} M \, X = \hat{W}^{\!\top} X$")


def draw_dynamic(axes: Axes) -> None:
    heading(axes, "Dynamic", "an M for every position, predicted from the input")
    for step in (2, 1):  # more matrices behind the first
        shift = 0.06 * step
        grid(axes, AT_M + shift, MIDDLE + shift, MATRIX, np.zeros((1, 1)), ORANGES, edge=ACCENT)
    product(axes, diagonal(), r"$X$", "patch")
    window(axes, 1, 1)
    box = FancyBboxPatch(
        (2.2, 0.72),
        1.3,
        0.36,
        "round,pad=0.06,rounding_size=0.1",
        facecolor="#f9fafb",
        edgecolor=INK,
    )
    axes.add_patch(box)
    axes.text(2.85, 0.9, "small predictor", color=INK, fontsize=9.5, ha="center", va="center")
    arrow(axes, (AT_X, MIDDLE - MAP / 2 - 0.06), (3.58, 0.9), bend=-0.45)
    arrow(axes, (2.12, 0.9), (AT_M, MIDDLE - MATRIX / 2 - 0.06), bend=-0.45, color=ACCENT)
    formula(axes, r"$y = W^{\!\top} M_{\theta}(X) \, X$")


def draw_global(axes: Axes) -> None:
    heading(axes, "Global", "M between the positions of the whole map")
    product(axes, random((25, 25), 7) ** 3, r"$X_F$", "whole map", name=r"$M_G$")
    left, bottom, cell = AT_X - MAP / 2, MIDDLE - MAP / 2, MAP / 5
    axes.add_patch(outline(left, bottom, MAP))
    target = (left + 2.5 * cell, bottom + 2.5 * cell)
    for column, row, bend in ((0, 4, -0.3), (4, 3, 0.3), (4, 0, -0.3), (1, 0, 0.3), (0, 2, 0.3)):
        start = (left + (column + 0.5) * cell, bottom + (row + 0.5) * cell)
        arrow(axes, start, target, bend=bend, color=ACCENT, shrink=3)
    # Below: M and the map make a map of the same size, which is then convolved.
    bracket(axes, AT_M - MATRIX / 2, AT_X + MAP / 2, 1.62)
    arrow(axes, (2.91, 1.52), (2.91, 1.24))
    grid(axes, 2.91, 0.88, 0.58, random((5, 5), 8), GREYS)
    axes.add_patch(outline(2.91 - 0.174, 0.88 - 0.174, 0.348, 1.5))
    axes.text(
        2.48, 0.98, "a map of mixed positions,", color=INK, fontsize=9.5, ha="right", va="center"
    )
    axes.text(
        2.48, 0.72, "then a plain convolution", color=SOFT, fontsize=9.5, ha="right", va="center"
    )
    formula(axes, r"$F = W_G^{\!\top} M_G \, X_F$")


def heading(axes: Axes, title: str, subtitle: str) -> None:
    axes.text(0.32, HEIGHT - 0.42, title, color=INK, fontsize=16, fontweight="bold", va="center")
    axes.text(0.32, HEIGHT - 0.72, subtitle, color=SOFT, fontsize=10.5, va="center")


def formula(axes: Axes, text: str) -> None:
    axes.text(WIDTH / 2, 0.27, text, color=INK, fontsize=17, ha="center", va="center")


def product(
    axes: Axes,
    similarity: NDArray[np.float64],
    input_name: str,
    input_word: str,
    name: str = r"$M$",
) -> None:
    """The row that all three have in common: kernel, similarity, input."""
    grid(axes, AT_W, MIDDLE, KERNEL, random((3, 3), 1), GREYS)
    grid(axes, AT_M, MIDDLE, MATRIX, similarity, ORANGES, edge=ACCENT)
    grid(axes, AT_X, MIDDLE, MAP, random((5, 5), 3), GREYS)
    for x in (1.3, 2.87):
        axes.text(x, MIDDLE, "·", color=INK, fontsize=20, ha="center", va="center")
    for x, symbol, word, color in (
        (AT_W, r"$W^{\!\top}$", "kernel", INK),
        (AT_M, name, "similarity", ACCENT),
        (AT_X, input_name, input_word, INK),
    ):
        axes.text(x, MIDDLE + 0.98, symbol, color=color, fontsize=14, ha="center", va="baseline")
        axes.text(x, MIDDLE + 0.78, word, color=color, fontsize=9.5, ha="center", va="baseline")


def grid(
    axes: Axes,
    x: float,
    y: float,
    side: float,
    values: NDArray[np.float64],
    colors: LinearSegmentedColormap,
    edge: str = INK,
) -> None:
    """A square of cells around a centre, in shades of one colour."""
    n = len(values)
    cell = side / n
    line = min(0.7, 4 / n)
    for row in range(n):
        for column in range(n):
            corner = (x - side / 2 + column * cell, y + side / 2 - (row + 1) * cell)
            color = colors(float(values[row, column]))
            axes.add_patch(
                Rectangle(corner, cell, cell, facecolor=color, edgecolor=CARD, linewidth=line)
            )
    corner = (x - side / 2, y - side / 2)
    axes.add_patch(Rectangle(corner, side, side, facecolor="none", edgecolor=edge, linewidth=1.1))


def window(axes: Axes, column: int, row: int) -> None:
    """The patch under the kernel."""
    cell = MAP / 5
    axes.add_patch(outline(AT_X - MAP / 2 + column * cell, MIDDLE - MAP / 2 + row * cell, 3 * cell))


def outline(left: float, bottom: float, side: float, width: float = 2.4) -> Rectangle:
    return Rectangle((left, bottom), side, side, facecolor="none", edgecolor=INK, linewidth=width)


def bracket(axes: Axes, left: float, right: float, y: float) -> None:
    axes.plot([left, left, right, right], [y + 0.08, y, y, y + 0.08], color=INK, linewidth=1.2)


def arrow(
    axes: Axes,
    start: tuple[float, float],
    end: tuple[float, float],
    bend: float = 0.0,
    color: str = INK,
    shrink: float = 0.0,
) -> None:
    axes.add_patch(
        FancyArrowPatch(
            start,
            end,
            connectionstyle=f"arc3,rad={bend}",
            arrowstyle="-|>",
            mutation_scale=11,
            color=color,
            linewidth=1.4,
            shrinkA=0,
            shrinkB=shrink,
        )
    )


def random(shape: tuple[int, int], seed: int) -> NDArray[np.float64]:
    return np.random.default_rng(seed).random(shape)


def diagonal() -> NDArray[np.float64]:
    """A 9 × 9 similarity near a diagonal, which is what layers learn most often."""
    apart = np.abs(np.subtract.outer(np.arange(9), np.arange(9)))
    return np.where(apart == 0, 0.65 + 0.35 * random((9, 9), 5), 0.12 * random((9, 9), 6))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
