"""The README's share of the report: two small tables, from the result files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from .. import markdown
from ..adapt.headline import adapt_rows
from ..tables.base import Table
from ..tables.registry import TABLES
from .cells import NONE, difference, in_shots, ours
from .comparison import compare
from .equal_cost.headline import HEAD, equal_cost_rows
from .row_results import RowResults, shots_of

__all__ = ["HEADLINES", "Headline", "headlines", "pair_rows"]


@dataclass(frozen=True)
class Headline:
    """Two rows of a table that are compared.

    Args:
        table: the name of the table.
        row: the name of the row that it is about.
        other: the name of the row it is compared with.
        words: what both are and the data, in words.
    """

    table: str
    row: str
    other: str
    words: tuple[str, str, str]


HEADLINES = (
    Headline(
        "table4", "static-diagonal", "cnn", ("static similarity", "plain network", "CIFAR-10")
    ),
    Headline(
        "table6", "dynamic", "wide-parameters",
        (
            "the paper's dynamic similarity", "plain network with as many parameters",
            "CIFAR-FS",
        ),
    ),
)  # fmt: skip

_EQUAL_COST = """
**One M per image against plain networks of equal cost**: how many points of accuracy it lies above
the curve of plain networks of several widths
"""
_PAIRS = """
**Other comparisons**: accuracy in percent, or error where it says so
"""
_LEGEND = """
± is a 95 % interval; differences are paired, and bold if the interval does not contain zero. The
photographs are classified with features of a network that was pretrained on ImageNet, which
contains some of their classes.
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
    parts = []
    if rows := list(equal_cost_rows(results, budget)):
        links = _links({"all networks": page and f"{page}#equal-cost"})
        parts += [markdown.paragraph(f"{_EQUAL_COST}{links}."), markdown.table(HEAD, rows)]
    if rows := [*adapt_rows(results / "adapt"), *pair_rows(tables)]:
        head = ("ours", "compared with", "data", "ours", "the other", "difference", "budget")
        links = _links({"all tables": page, "all ways to adapt": adapt_page})
        parts += [markdown.paragraph(f"{_PAIRS}{links}."), markdown.table(head, rows)]
    if not parts:
        return "There are no results to compare yet."
    return "\n\n".join([*parts, markdown.paragraph(_LEGEND)])


def _links(targets: Mapping[str, str | None]) -> str:
    """Links in brackets, to be appended to a sentence."""
    known = [f"[{words}]({target})" for words, target in targets.items() if target is not None]
    return f" ({', '.join(known)})" if known else ""


def pair_rows(tables: Mapping[str, Mapping[str, RowResults]]) -> Iterator[list[str]]:
    """The cells of every pair that was run, for every number of shots."""
    for headline in HEADLINES:
        rows = tables.get(headline.table, {})
        row, other = rows.get(headline.row), rows.get(headline.other)
        if row is None or other is None or not row.by_seed or not other.by_seed:
            continue
        table = TABLES[headline.table]
        for shots in shots_of(rows) if table.metric == "accuracy" else [None]:
            yield [*_what(headline, table, shots), *_numbers(table, row, other, shots)]


def _what(headline: Headline, table: Table, shots: int | None) -> tuple[str, str, str]:
    row, other, data = headline.words
    return row, other, f"{data}, {table.metric if shots is None else in_shots(shots)}"


def _numbers(table: Table, row: RowResults, other: RowResults, shots: int | None) -> Iterator[str]:
    """Both numbers, their difference, and how they were obtained."""
    compared = compare(row, other, table.metric, shots)
    yield ours(compared, brief=True)
    yield ours(compare(other, other, table.metric, shots), brief=True)
    text = difference(compared, brief=True)
    yield text if compared.better is None or text == NONE else f"**{text}**"
    yield _budget(row, other)


def _budget(row: RowResults, other: RowResults) -> str:
    """How many seeds both have, and how the row was trained."""
    config = row.row.training(row.budget)
    length = f"{config.epochs:g} epochs" if config.steps is None else f"{config.steps:,} steps"
    width = f" of width {config.options['width']}" if "width" in config.options else ""
    seeds = len(row.finished.keys() & other.finished.keys())
    return f"{seeds} seed{'s' * (seeds != 1)}, `{config.model}`{width}, {length}"
