"""The README's share of the report: pairs of rows, one line each, from the result files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ..tables.base import Table
from ..tables.registry import TABLES
from .cells import in_shots, number, signed, verdict
from .comparison import Comparison, compare
from .row_results import RowResults, shots_of

__all__ = ["HEADLINES", "Headline", "headlines"]


@dataclass(frozen=True)
class Headline:
    """Two rows of a table that are compared in one line.

    Args:
        table: the name of the table.
        row: the name of the row that the line is about.
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
        "CIFAR-10, static similarity against the plain network",
    ),
    Headline(
        "table6", "dynamic", "wide-parameters",
        "CIFAR-FS, dynamic similarity against a plain network with as many parameters",
    ),
)  # fmt: skip


def headlines(tables: Mapping[str, Mapping[str, RowResults]], page: str | None) -> str:
    """A Markdown list; ``page`` is the link to all results. Results that are missing are left out.

    Args:
        tables: results by table and row.
        page: where a line's link leads to; None for no link.
    """
    lines = [line for one in HEADLINES if one.table in tables for line in _line(one, tables, page)]
    return "\n".join(lines) or "- There are no results to compare yet."


def _line(
    headline: Headline, tables: Mapping[str, Mapping[str, RowResults]], page: str | None
) -> Iterator[str]:
    table, rows = TABLES[headline.table], tables[headline.table]
    row, other = rows.get(headline.row), rows.get(headline.other)
    if row is None or other is None or not row.by_seed or not other.by_seed:
        return
    if row.diverged or other.diverged:
        result = "no comparison, because training diverged"
    else:
        shots = shots_of(rows) if table.metric == "accuracy" else [None]
        parts = [part for n in shots if (part := _part(table, row, other, n))]
        if not parts:
            return
        result = f"{table.metric} {'; '.join(parts)}"
    link = f"Table {table.number}" if page is None else f"[Table {table.number}]({page})"
    yield f"- **{headline.words}**: {result} ({_budget(row, other)}; {link})."


def _part(table: Table, row: RowResults, other: RowResults, shots: int | None) -> str | None:
    """Both numbers, their difference and the verdict, for one number of shots."""
    ours = compare(row, other, table.metric, shots)
    theirs = compare(other, other, table.metric, shots)
    if ours.ours is None or theirs.ours is None or ours.difference is None:
        return None
    return (
        f"{'' if shots is None else f'with {in_shots(shots)} '}{number(ours.ours, brief=True)} % "
        f"against {number(theirs.ours, brief=True)} %, a difference of "
        f"{signed(ours.difference, brief=True)} points: {_verdict(ours)}"
    )


def _verdict(of: Comparison) -> str:
    """The verdict, in bold if the two are separated."""
    text = verdict(of)
    return text if of.better is None else f"**{text}**"


def _budget(row: RowResults, other: RowResults) -> str:
    """How the row was trained, and what the intervals are over."""
    config = row.row.training(row.budget)
    length = f"{config.epochs:g} epochs" if config.steps is None else f"{config.steps:,} steps"
    width = f" of width {config.options['width']}" if "width" in config.options else ""
    seeds = len(row.finished.keys() & other.finished.keys())
    return f"95 % intervals, {seeds} seed{'s' * (seeds != 1)}, `{config.model}`{width}, {length}"
