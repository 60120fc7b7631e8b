"""The confusion matrix: which classes are predicted for the images of each class."""

from __future__ import annotations

import os
from collections.abc import Sequence
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .style import GREY, figure, save

__all__ = ["draw_confusion"]

_MOST_WRITTEN = 30  # classes; with more, the numbers do not fit
_MOST_NAMED = 60  # classes; of more, only some are named
_LONGEST = 24


def draw_confusion(
    counts: NDArray[np.int64], classes: Sequence[Any], path: str | os.PathLike[str], title: str
) -> None:
    """Write a PNG: the number of images by true class (rows) and predicted class (columns).

    The colour is the share of the row, so small classes are as visible as large ones.
    """
    n = len(classes)
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    side = min(max(0.42 * n, 2.6), 12.0)
    with figure(side + 2.6, side + 2.0, title) as drawing:
        axes = drawing.add_subplot()
        image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
        if n <= _MOST_WRITTEN:
            for row, column in zip(*counts.nonzero(), strict=True):
                colour = "white" if shares[row, column] > 0.55 else "black"
                axes.text(
                    column, row, str(counts[row, column]), ha="center", va="center", color=colour,
                    fontsize=8,
                )  # fmt: skip
        places = range(0, n, ceil(n / _MOST_NAMED) or 1)
        names = _labels(classes)
        shown = [names[place] for place in places]
        axes.set_xticks(places, shown, rotation=45, ha="right", rotation_mode="anchor")
        axes.set_yticks(places, shown)
        axes.set_xlabel("predicted class")
        axes.set_ylabel("true class")
        axes.tick_params(length=0)
        for spine in axes.spines.values():
            spine.set_visible(True)
            spine.set_color(GREY)
        bar = drawing.colorbar(image, ax=axes, shrink=0.8, label="share of the true class")
        bar.outline.set_visible(False)
        save(drawing, path)


def _labels(classes: Sequence[Any]) -> list[str]:
    """Short names on one line each, numbered from 1 if they are alike or not all of them fit.

    >>> _labels(["cat", "dog\\n(small)"])
    ['cat', 'dog (small)']
    >>> _labels(["tree near the lake, in summer", "tree near the hut, in summer"])
    ['1: tree near t…, in summer', '2: tree near t…, in summer']
    """
    names = [_short(" ".join(str(name).split())) for name in classes]
    if len(set(names)) == len(names) <= _MOST_NAMED:
        return names
    return [f"{number}: {name}" for number, name in enumerate(names, 1)]


def _short(name: str) -> str:
    """A long name without its middle: names of one genus differ at their ends."""
    half = (_LONGEST - 1) // 2
    return name if len(name) <= _LONGEST else f"{name[:half]}…{name[-half:]}"
