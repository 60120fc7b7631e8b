"""A table of the paper as Markdown: our numbers, the paper's numbers, and notes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from .. import markdown
from ..commands import command_for
from ..tables.base import Table
from .cells import NONE, difference, in_shots, ours, published, verdict
from .comparison import compare, compare_rows
from .footnotes import footnotes
from .row_results import RowResults, shots_of

__all__ = ["full_text", "longer", "pairs_text", "short_text"]


def full_text(table: Table, rows: Mapping[str, RowResults], budget: str) -> str:
    """Title, numbers and notes."""
    parts = [f"## Table {table.number}: {table.title}{longer(budget)}"]
    if table.sizes:
        parts += [_sizes(table, rows), _commands(table)]
    if table.metric == "accuracy":
        for shots in shots_of(rows):
            parts += [f"### {in_shots(shots)}", _numbers(table, rows, shots)]
    elif any(row.tested or row.diverged for row in rows.values()):
        parts += [_numbers(table, rows)]
    parts += pairs_text(table, rows)
    notes = [f"- {note}" for note in footnotes(table, rows, budget)]
    return "\n\n".join([*parts, "\n".join(notes)])


def longer(budget: str) -> str:
    """What the title of a table adds at the budget that is shown next to the short one."""
    return ", trained longer" if budget == "long" else ""


def short_text(table: Table, rows: Mapping[str, RowResults]) -> str:
    """The rows that were run, with columns for every number of shots."""
    sources = {"paper": table.paper, "published": table.published}
    all_shots = shots_of(rows) if table.metric == "accuracy" else [None]
    by_shots = {
        shots: [one for one in compare_rows(table, rows, shots) if one.results.by_seed]
        for shots in all_shots
    }
    head, columns = [""], [[one.row.title for one in by_shots[all_shots[0]]]]
    for shots, comparisons in by_shots.items():
        head.append(f"{table.metric if shots is None else in_shots(shots)}, %")
        columns.append([ours(one, brief=True) for one in comparisons])
        for source, numbers in sources.items():
            cells = [published(numbers, one.row.name, shots) for one in comparisons]
            if set(cells) != {NONE}:
                head.append(source)
                columns.append(cells)
        head.append("difference")
        columns.append([difference(one, table.baseline, brief=True) for one in comparisons])
    head.append("seeds")
    columns.append([str(len(one.results.by_seed)) for one in by_shots[all_shots[0]]])
    return markdown.table(head, [list(row) for row in zip(*columns, strict=True)])


def pairs_text(table: Table, rows: Mapping[str, RowResults], brief: bool = False) -> Iterator[str]:
    """A heading and a table of the rows that are compared with another row than the baseline."""
    pairs = [
        pair for pair in table.pairs if all(name in rows and rows[name].finished for name in pair)
    ]
    if not pairs:
        return
    columns = {
        "": [table.row(name).title for name, _ in pairs],
        "compared with": [table.row(other).title for _, other in pairs],
    }
    for shots in shots_of(rows) if table.metric == "accuracy" else [None]:
        comparisons = [compare(rows[a], rows[b], table.metric, shots) for a, b in pairs]
        head = table.metric if shots is None else in_shots(shots)
        columns[f"difference, {head}"] = [difference(one, brief=brief) for one in comparisons]
        columns[f"verdict, {head}"] = [verdict(one) for one in comparisons]
    yield "Other pairs:"
    yield _from_columns(columns)


def _numbers(table: Table, rows: Mapping[str, RowResults], shots: int | None = None) -> str:
    """The measurements, row by row; empty columns are left out."""
    columns: dict[str, list[str]] = {}
    for one in compare_rows(table, rows, shots):
        name = one.row.name
        cells = {
            "": one.row.title,
            f"our {table.metric}, %": ours(one),
            "paper": published(table.paper, name, shots),
            "our top-5 error, %": _percent(one.top5) if table.top5 else NONE,
            "paper, top-5": published(table.top5, name, shots),
            "published elsewhere": published(table.published, name, shots),
            "difference from baseline": difference(one, table.baseline),
            "seeds": str(len(one.results.by_seed)),
            "parameters": _count(one.parameters),
            "parameters adapted": _count(one.adapted),
            "minutes": NONE if shots or one.minutes is None else _minutes(one.minutes),
            "verdict": verdict(one, table.baseline),
        }
        for head, cell in cells.items():
            columns.setdefault(head, []).append(cell)
    return _from_columns({head: of for head, of in columns.items() if set(of) != {NONE}})


def _sizes(table: Table, rows: Mapping[str, RowResults]) -> str:
    """Parameters, the time of a step, and the errors that the paper reached."""
    head = (
        "", "our parameters, millions", "paper", "seconds per step", "paper's error, %",
        "its top-5 error, %",
    )  # fmt: skip
    columns: dict[str, list[str]] = {name: [] for name in head}
    for one in compare_rows(table, rows):
        size, step = one.parameters, one.step_seconds
        cells = (
            one.row.title,
            NONE if size is None else f"{size / 1e6:.2f}",
            published(table.sizes, one.row.name, None),
            NONE if step is None else f"{step:.1f}",
            published(table.paper, one.row.name, None),
            published(table.top5, one.row.name, None),
        )
        for column, cell in zip(columns.values(), cells, strict=True):
            column.append(cell)
    return _from_columns(columns)


def _commands(table: Table) -> str:
    """The commands of the paper's schedule."""
    commands = [
        f"$ {command_for(row.training('paper'))} --out runs/{table.name}-{row.name}"
        for row in table.rows
    ]
    return "The paper's schedule:\n\n```console\n" + "\n".join(commands) + "\n```"


def _percent(of: float | None) -> str:
    return NONE if of is None else f"{of:.2f}"


def _minutes(of: float) -> str:
    """Two digits: the machine did other work as well."""
    return f"{of:.0f}" if of >= 10 else f"{of:.1f}"


def _count(of: int | None) -> str:
    return NONE if of is None else f"{of:,}"


def _from_columns(columns: Mapping[str, Sequence[str]]) -> str:
    return markdown.table(list(columns), list(zip(*columns.values(), strict=True)))
