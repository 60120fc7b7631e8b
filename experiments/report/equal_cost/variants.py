"""The part of the report on variants of one M per image."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ... import markdown
from ...intervals import over_seeds, paired_over_seeds
from ...records import read_record
from ...variants import PLAIN, SEEDS, VARIANTS, WINNER, result_file
from ..cells import NONE, number, signed

__all__ = ["variants_text"]

_INTRODUCTION = """
Variants of the form of M, compared on classes that the study does not report. Networks are trained
as above with other seeds, and measured on 1,000 episodes of CIFAR-FS's validation classes (5 ways,
5 shots). Differences are paired by seed; ± is a 95 % interval over seeds (Student's t).
"""


def variants_text(results: Path) -> Iterator[str]:
    """Paragraphs; nothing without results."""
    accuracies = {name: _accuracies(results, name) for name in VARIANTS}
    lines = [_line(name, accuracies) for name, own in accuracies.items() if own]
    if lines:
        yield "### Variants of one M per image, on validation classes"
        yield markdown.paragraph(_INTRODUCTION)
        head = ["network", "seeds", "accuracy, %", "difference from plain", "from one M per image"]
        yield markdown.table(head, lines)


def _line(name: str, accuracies: dict[str, dict[int, float]]) -> list[str]:
    own = accuracies[name]
    cells = []
    for other in (PLAIN, WINNER):
        seeds = sorted(own.keys() & accuracies[other].keys())
        if name == other or not seeds:
            cells.append(NONE)
        else:
            pairs = [own[seed] for seed in seeds], [accuracies[other][seed] for seed in seeds]
            cells.append(signed(paired_over_seeds(*pairs), brief=True))
    mean = number(over_seeds(list(own.values())), brief=True)
    return [VARIANTS[name][0], str(len(own)), mean, *cells]


def _accuracies(results: Path, name: str) -> dict[int, float]:
    """By seed, in percent."""
    records = {seed: read_record(result_file(results, name, seed)) for seed in SEEDS}
    return {seed: record["accuracy"] for seed, record in records.items() if record is not None}
