"""The README's rows on ``nsl adapt``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ..intervals import Estimate
from .cells import read_studies

__all__ = ["adapt_rows"]

_WHERE = (10, 10)
_POOLS = ("birds", "cars")
_BACKBONE = "efficientnet_lite0"
_REFERENCE = "scikit-learn, C=1"


def adapt_rows(results: Path) -> Iterator[list[str]]:
    """Cells of a row for birds and for cars, as far as they were measured.

    What is compared, the data, both accuracies, the difference on the same tasks, the budget.
    """
    for study in read_studies(results):
        if study.backbone != _BACKBONE or study.pool not in _POOLS or _WHERE not in study.cells:
            continue
        cell = study.cells[_WHERE]
        difference = cell.difference("auto", _REFERENCE)
        text = _number(difference, "{:+.1f}")
        yield [
            "`nsl adapt`",
            "scikit-learn's logistic regression on the same features",
            f"{study.pool}, ten images of each of ten classes",
            _number(cell.accuracy("auto")),
            _number(cell.accuracy(_REFERENCE)),
            f"**{text}**" if difference.contains(0.0) is False else text,
            f"{len(cell.accuracies['auto'])} tasks, `{_BACKBONE}`",
        ]


def _number(of: Estimate, form: str = "{:.1f}") -> str:
    mean = form.format(of.mean).replace("-", "−")
    return mean if of.high is None else f"{mean} ± {of.high - of.mean:.1f}"
