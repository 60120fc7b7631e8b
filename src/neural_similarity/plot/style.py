"""The style of all plots, and how they are saved.

Figures use the object interface: pyplot keeps a global list of figures and may need a screen.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from .._io import whole_file

__all__ = ["DIVERGING", "GREY", "PALETTE", "figure", "save"]

# Okabe and Ito's colours, which people with any colour vision can distinguish; without yellow,
# which is too light for a line on white.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
GREY = "#767676"
DIVERGING = "RdBu_r"

_STYLE = {
    # Names of classes and files are not mathematics, even with dollar signs, and not LaTeX, even if
    # a matplotlibrc in the current folder enables it.
    "text.parse_math": False,
    "text.usetex": False,
    "font.size": 9.0,
    "axes.titlesize": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.grid": False,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.8,
    "axes.axisbelow": True,
    "lines.linewidth": 1.5,
    "legend.frameon": False,
    "figure.facecolor": "white",
    "savefig.dpi": 130,
}
# The user's own style, such as a dark background, does not apply to our plots. The backend is how
# windows are shown, and looking it up may start one.
_SETTINGS = {k: v for k, v in matplotlib.rcParamsDefault.items() if k != "backend"} | _STYLE
_LOCK = threading.RLock()  # matplotlib's settings belong to the process, not to a thread


@contextmanager
def figure(width: float, height: float, title: str | None = None) -> Iterator[Figure]:
    """An empty figure in our style, its size in inches; draw and save it within the block."""
    with _LOCK, matplotlib.rc_context(_SETTINGS):  # type: ignore[arg-type]
        drawing = Figure(figsize=(width, height), layout="constrained")
        if title:
            drawing.suptitle(title, fontsize=11)
        yield drawing


def save(drawing: Figure, path: str | os.PathLike[str], **options: Any) -> None:
    """Write the figure as PNG, atomically.

    Characters that the font lacks, as in Chinese class names, are drawn as boxes without a
    warning.
    """
    with whole_file(path) as file, warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph .* missing", UserWarning)
        drawing.savefig(file, format="png", **options)
