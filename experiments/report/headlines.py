"""The README's share of the report: a table of at most five rows, from the result files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from .. import markdown
from ..adapt.headline import adapt_rows
from ..tables.base import Table
from ..tables.registry import TABLES
from .cells import in_shots
from .comparison import compare
from .equal_cost.headline import equal_cost_rows
from .row_results import RowResults, shots_of

__all__ = ["HEADLINES", "Headline", "headlines", "pair_rows"]


@dataclass(frozen=True)
class Headline:
    """Two rows of a table that are compared.

    Args:
        table: the name of the table.
        row: the name of the row that it is about.
        other: the name of the row it is compared with.
        words: the comparison in words.
    """

    table: str
    row: str
    other: str
    words: str


HEADLINES = (
    Headline(
        "table4", "static-diagonal", "cnn",
        "Static similarity against the plain network: error on CIFAR-10 (lower is better)",
    ),
    Headline(
        "table6", "dynamic", "wide-parameters",
        "The paper's dynamic similarity against a plain network with as many parameters: CIFAR-FS",
    ),
)  # fmt: skip

_LEGEND = """
± is the 95 % interval of the paired difference. A difference is bold if its interval is over seeds
and does not contain zero. We made many comparisons without correction, so some may be luck. We
measured the time per step several times and report what is least favourable to our networks.
Intervals over seeds do not include the choice of test images or test classes. For birds and cars
the interval is over random tasks from the same 400 photographs, and says nothing about others. Some
of these classes were used to choose settings, or are in ImageNet.
"""


def headlines(
    results: Path, budget: str, tables: Mapping[str, Mapping[str, RowResults]],
    page: str | None = None, adapt_page: str | None = None,
) -> str:  # fmt: skip
    """Markdown; results that are missing are left out.

    Args:
        results: folder of result files.
        budget: which of the results.
        tables: results by table and row.
        page: the link to all tables and studies; None for no link.
        adapt_page: the link to all ways to adapt; None for no link.
    """
    rows = [
        *adapt_rows(results / "adapt", adapt_page),
        *equal_cost_rows(results, budget, page),
        *pair_rows(tables, page),
    ]
    if not rows:
        return "There are no results to compare yet."
    table = markdown.table(
        ("comparison", "result in %, difference in points", "what was run"), rows
    )
    return f"{table}\n\n{markdown.paragraph(_LEGEND)}"


def pair_rows(
    tables: Mapping[str, Mapping[str, RowResults]], page: str | None = None
) -> Iterator[list[str]]:
    """The cells of every pair that was run; ``page`` is where their links lead to."""
    for headline in HEADLINES:
        rows = tables.get(headline.table, {})
        row, other = rows.get(headline.row), rows.get(headline.other)
        if row is None or other is None or not row.by_seed or not other.by_seed:
            continue
        table = TABLES[headline.table]
        shots = shots_of(rows) if table.metric == "accuracy" else [None]
        if row.diverged or other.diverged:
            parts = ["no comparison, because training diverged"]
        else:
            parts = [part for n in shots if (part := _difference(table, row, other, n))]
        if parts:
            yield [headline.words, "; ".join(parts), markdown.link(_budget(row, other), page)]


def _difference(table: Table, row: RowResults, other: RowResults, shots: int | None) -> str | None:
    """Both numbers and their difference, for one number of shots; None without a common seed."""
    ours = compare(row, other, table.metric, shots)
    theirs = compare(other, other, table.metric, shots)
    if ours.ours is None or theirs.ours is None or ours.difference is None:
        return None
    numbers = markdown.difference(ours.ours, theirs.ours, ours.difference, 2)
    return numbers if shots is None else f"{in_shots(shots)}: {numbers}"


def _budget(row: RowResults, other: RowResults) -> str:
    """How many seeds both have, and how the row was trained."""
    config = row.row.training(row.budget)
    length = f"{config.epochs:g} epochs" if config.steps is None else f"{config.steps:,} steps"
    width = f" of width {config.options['width']}" if "width" in config.options else ""
    seeds = len(row.finished.keys() & other.finished.keys())
    return f"{seeds} seed{'s' * (seeds != 1)}, `{config.model}`{width}, {length}"
