"""The picture of the comparison: how far the ways are above or below ``linear``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.artist import Artist
from matplotlib.axes import Axes

from neural_similarity.plot import style

from .cells import Cell, Study

__all__ = ["draw_shots"]

_SHOWN = ("auto", "ridge", "proto", "laplace", "scikit-learn, C=1")
_REFERENCE = "linear"


def draw_shots(studies: Sequence[Study], file: Path) -> None:
    """A column of panels for every study of the first network, a row for every number of ways."""
    studies = [study for study in studies if study.backbone == studies[0].backbone]
    ways = sorted({way for study in studies for way, _ in study.cells})
    shots = sorted({shot for study in studies for _, shot in study.cells})
    with style.figure(2.9 * len(studies) + 0.6, 2.6 * len(ways) + 0.8) as picture:
        panels = picture.subplots(len(ways), len(studies), squeeze=False, sharex=True, sharey=True)
        for column, study in enumerate(studies):
            panels[0][column].set_title(f"{study.pool}\n{study.backbone}, {study.image_size} px")
            for row, way in enumerate(ways):
                cells = [cell for cell in study.cells.values() if cell.n_way == way]
                _draw_panel(panels[row][column], cells, shots)
        for row, way in enumerate(ways):
            panels[row][0].set_ylabel(f"points above {_REFERENCE}, {way} ways")
        for axes in panels[-1]:
            axes.set_xlabel("images per class")
        handles: dict[str, Artist] = {}
        for axes in panels.flat:
            lines, names = axes.get_legend_handles_labels()
            handles |= dict(zip(names, lines, strict=True))
        picture.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=5)
        style.save(picture, file, dpi=100)


def _draw_panel(axes: Axes, cells: Sequence[Cell], shots: list[int]) -> None:
    """The differences from the reference on the same tasks, side by side, with their intervals."""
    axes.axhline(0, color=style.GREY, linewidth=1)
    for number, name in enumerate(_SHOWN):
        method_cells = [cell for cell in cells if name in cell.accuracies]
        gaps = [cell.difference(name, _REFERENCE) for cell in method_cells]
        halves = [0.0 if gap.high is None else gap.high - gap.mean for gap in gaps]
        aside = 0.15 * (number - len(_SHOWN) // 2)
        places = [shots.index(cell.n_shot) + aside for cell in method_cells]
        if method_cells:
            axes.errorbar(
                places, [gap.mean for gap in gaps], halves, fmt="o", markersize=4, label=name,
                elinewidth=1, color=style.PALETTE[-1] if name == "auto" else style.PALETTE[number],
            )  # fmt: skip
    axes.set_xticks(range(len(shots)), [str(shot) for shot in shots])
    axes.grid(axis="y")
