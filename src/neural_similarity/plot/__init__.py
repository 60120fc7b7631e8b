"""Plots and reports. They take plain values and write files; nothing here trains or reads runs.

matplotlib is slow to import: import this package inside functions.
"""

from . import style
from .calibration import draw_calibration
from .confusion import draw_confusion
from .curves import draw_comparison, draw_run
from .methods import draw_methods
from .neighbours import Explained, draw_neighbours
from .report import Facts, Gallery, Part, Picture, Section, Table, Text, write_report
from .similarities import draw_dynamic, draw_static

__all__ = [
    "Explained",
    "Facts",
    "Gallery",
    "Part",
    "Picture",
    "Section",
    "Table",
    "Text",
    "draw_calibration",
    "draw_comparison",
    "draw_confusion",
    "draw_dynamic",
    "draw_methods",
    "draw_neighbours",
    "draw_run",
    "draw_static",
    "style",
    "write_report",
]
