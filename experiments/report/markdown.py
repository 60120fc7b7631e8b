"""A table of the paper as Markdown: our numbers beside the paper's, and notes below."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..queue.commands import command_of
from ..tables.row import Table
from ..theory.report import markdown
from .comparison import Finding, Runs, compared, findings, shots_of
from .footnotes import notes
from .intervals import Estimate

__all__ = [
    "NONE",
    "difference",
    "in_shots",
    "number",
    "ours",
    "pairs",
    "published",
    "render",
    "signed",
]

NONE = "–"


def render(table: Table, runs: Mapping[str, Runs], budget: str) -> str:
    """Title, numbers and notes."""
    printed_as = table.name.removeprefix("table").partition("-")[0]
    parts = [f"## Table {printed_as}: {table.title}"]
    if table.sizes:
        parts += [_sizes(table, runs), _commands(table)]
    if table.metric == "accuracy":
        for shots in shots_of(runs):
            parts += [f"### {in_shots(shots)}", _numbers(table, runs, shots)]
    elif any(of.tested or of.diverged for of in runs.values()):
        parts += [_numbers(table, runs)]
    parts += pairs(table, runs)
    below = [f"- {note}" for note in notes(table, runs, budget)]
    return "\n\n".join([*parts, "\n".join(below)])


def pairs(table: Table, runs: Mapping[str, Runs], briefly: bool = False) -> Iterator[str]:
    """Rows beside another than the baseline, if there are any: what comes before, and a table."""
    known = [pair for pair in table.pairs if all(runs[name].finished for name in pair)]
    if not known:
        return
    columns = {
        "": [table.row(name).title for name, _ in known],
        "compared with": [table.row(other).title for _, other in known],
    }
    for n in shots_of(runs) if table.metric == "accuracy" else [None]:
        found = [compared(runs[name], runs[other], table.metric, n) for name, other in known]
        head = table.metric if n is None else in_shots(n)
        columns[f"difference, {head}"] = [difference(one, briefly=briefly) for one in found]
        columns[f"verdict, {head}"] = [_verdict(one) for one in found]
    yield "Other pairs:"
    yield _table(columns)


def ours(found: Finding, briefly: bool = False) -> str:
    """Our mean with its interval, or how many seeds diverged."""
    mean = None if found.ours is None else number(found.ours, briefly)
    if not found.runs.diverged:
        return mean or NONE
    said = f"diverged, {len(found.runs.diverged)} of {len(found.runs.by_seed)}"
    return f"{said}; else {mean}" if mean else said


def difference(found: Finding, baseline: str | None = None, briefly: bool = False) -> str:
    """To what it was compared with; the table's ``baseline`` is only named so."""
    if found.row.name == baseline:
        return "baseline"
    if found.difference is None:
        return NONE
    return signed(found.difference, briefly)


def number(of: Estimate, briefly: bool = False) -> str:
    """A mean with its interval; ``briefly`` does not say what the interval is over."""
    return f"{of.mean:.2f}{_interval(of, briefly)}"


def signed(of: Estimate, briefly: bool = False) -> str:
    """The same of a difference."""
    return f"{of.mean:+.2f}{_interval(of, briefly)}".replace("-", "−")


def published(numbers: Mapping[str, Any], name: str, shots: int | None) -> str:
    """A number that was printed elsewhere."""
    printed = numbers.get(name)
    if isinstance(printed, Mapping):
        printed = printed.get(shots)
    return NONE if printed is None else f"{printed:.2f}"


def in_shots(count: int) -> str:
    """Examples a class, in words."""
    return f"{count} shot{'s' * (count > 1)}"


def _numbers(table: Table, runs: Mapping[str, Runs], shots: int | None = None) -> str:
    """What was measured, row by row; a column that would be empty is left out."""
    columns: dict[str, list[str]] = {}
    for found in findings(table, runs, shots):
        name = found.row.name
        cells = {
            "": found.row.title,
            f"our {table.metric}, %": ours(found),
            "paper": published(table.paper, name, shots),
            "published elsewhere": published(table.published, name, shots),
            "difference to baseline": difference(found, table.baseline),
            "seeds": str(len(found.runs.by_seed)),
            "parameters": _count(found.parameters),
            "adapted": _count(found.adapted),
            "minutes": NONE if shots or found.minutes is None else _minutes(found.minutes),
            "verdict": _verdict(found, table.baseline),
        }
        for head, cell in cells.items():
            columns.setdefault(head, []).append(cell)
    return _table({head: of for head, of in columns.items() if set(of) != {NONE}})


def _sizes(table: Table, runs: Mapping[str, Runs]) -> str:
    """Parameters, and the time of a step."""
    columns: dict[str, list[str]] = {"": [], "our parameters, M": [], "paper": [], "s a step": []}
    for found in findings(table, runs):
        size, step = found.parameters, found.step_seconds
        cells = (
            found.row.title,
            NONE if size is None else f"{size / 1e6:.2f}",
            published(table.sizes, found.row.name, None),
            NONE if step is None else f"{step:.1f}",
        )
        for column, cell in zip(columns.values(), cells, strict=True):
            column.append(cell)
    return _table(columns)


def _commands(table: Table) -> str:
    """How the paper's schedule is run."""
    commands = [
        f"$ {command_of(row.training('paper'))} --out runs/{table.name}-{row.name}"
        for row in table.rows
    ]
    return "The paper's schedule:\n\n```console\n" + "\n".join(commands) + "\n```"


def _verdict(found: Finding, baseline: str | None = None) -> str:
    if not found.runs.by_seed:
        return "not run"
    if found.runs.diverged:
        return "diverged"
    if found.row.name == baseline or found.difference is None:
        return NONE
    if found.difference.low is None:
        return "one seed cannot tell"
    if found.better is None:
        return "not separated at this budget"
    said = "better" if found.better else "worse"
    return said if "seeds" in found.difference.over else f"{said}, one seed"


def _minutes(of: float) -> str:
    """Two digits: machines do other work as well."""
    return f"{of:.0f}" if of >= 10 else f"{of:.1f}"


def _interval(of: Estimate, briefly: bool) -> str:
    if of.low is None or of.high is None:
        return ""
    half, other = of.high - of.mean, of.mean - of.low
    even = abs(half - other) < 1e-9 * max(1.0, abs(of.mean))
    said = f" ± {half:.2f}" if even else f" ({of.low:.2f} – {of.high:.2f})"
    return said if briefly or "seeds" in of.over else f"{said} over {of.over}"


def _count(of: int | None) -> str:
    return NONE if of is None else f"{of:,}"


def _table(columns: Mapping[str, Sequence[str]]) -> str:
    return markdown(list(columns), list(zip(*columns.values(), strict=True)))
