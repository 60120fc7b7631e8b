"""The README's line on ``nsl adapt``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from .cells import Study, read_studies

__all__ = ["adapt_lines"]

_WHERE = (10, 10)
_POOLS = ("birds", "cars")
_BACKBONE = "efficientnet_lite0"
_REFERENCE = "scikit-learn, C=1"


def adapt_lines(results: Path, page: str | None) -> Iterator[str]:
    """One line, if birds and cars were measured; ``page`` is where its link leads to."""
    studies = {
        study.pool: study
        for study in read_studies(results)
        if study.backbone == _BACKBONE and _WHERE in study.cells
    }
    if not set(_POOLS) <= set(studies):
        return
    ours = " and ".join(f"{_number(studies[pool], 'auto')} % of {pool}" for pool in _POOLS)
    theirs = " and ".join(f"{_number(studies[pool], _REFERENCE)} %" for pool in _POOLS)
    tasks = min(len(studies[pool].cells[_WHERE].accuracies["auto"]) for pool in _POOLS)
    link = "" if page is None else f"; [all ways to adapt]({page})"
    yield (
        f"- **Photographs, ten images of each of ten classes**: `nsl adapt` classifies {ours} "
        f"correctly; scikit-learn's logistic regression on the same features reaches {theirs} "
        f"(95 % intervals, {tasks} tasks, `{_BACKBONE}` pretrained on ImageNet, which contains "
        f"some of these classes{link})."
    )


def _number(study: Study, method: str) -> str:
    found = study.cells[_WHERE].accuracy(method)
    return f"{found.mean:.1f} ± {(found.high or found.mean) - found.mean:.1f}"
