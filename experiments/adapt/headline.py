"""The README's row on ``nsl adapt``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from .. import markdown
from .cells import Cell, read_studies

__all__ = ["adapt_rows"]

_WHERE = (10, 10)
_POOLS = ("birds", "cars")
_BACKBONE = "efficientnet_lite0"
_REFERENCE = "scikit-learn, C=1"


def adapt_rows(results: Path, page: str | None = None) -> Iterator[list[str]]:
    """The cells of one row, if birds and cars were measured; ``page`` is where its link leads."""
    cells = {
        study.pool: study.cells[_WHERE]
        for study in read_studies(results)
        if study.backbone == _BACKBONE and _WHERE in study.cells
    }
    if not set(_POOLS) <= set(cells):
        return
    tasks = min(len(cells[pool].accuracies["auto"]) for pool in _POOLS)
    yield [
        "`nsl adapt` against scikit-learn's logistic regression on the same features: ten images "
        "of each of ten classes",
        "; ".join(f"{pool}: {_difference(cells[pool])}" for pool in _POOLS),
        markdown.link(f"{tasks} tasks, `{_BACKBONE}` pretrained on ImageNet", page),
    ]


def _difference(cell: Cell) -> str:
    difference = cell.difference("auto", _REFERENCE)
    return markdown.difference(cell.accuracy("auto"), cell.accuracy(_REFERENCE), difference, 1)
