"""The results page of the documentation: an introduction, the main tables and the pictures."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from .. import markdown
from ..tables.registry import TABLES
from .row_results import RowResults
from .table_text import longer, pairs_text, short_text

__all__ = ["CAPTIONS", "has_finished", "link", "page_text", "picture_text"]

ON_PAGE = ("table4", "table6", "table6-mini")
CAPTIONS = {
    "table4": (
        "error-over-time.png",
        "Table 4: test error over training time and over epochs. Lines are means over seeds; bands "
        "reach from the best seed to the worst. Time is the number of steps times the seconds of a "
        "step at the run's fastest pace (its fastest tenth).",
    ),
    "table6": (
        "accuracy-over-adapted.png",
        "Table 6: accuracy over the number of parameters adapted in an episode, with 95 % "
        "intervals. Blue: static similarities; orange: dynamic ones; grey: none. Points are moved "
        "sideways a little, so that none hides another.",
    ),
}
"""The picture of a table and its caption."""

_INTRODUCTION = """
What this implementation reaches on two processor cores, next to the numbers of the paper, which
trained much longer. Every number here is computed from the result files in `experiments/results`.
"""
_HOW_TO_READ = """
± is a 95 % interval. Differences are to the table's baseline, paired by seed. With one seed the
interval is over the test's episodes or images: it describes that network, not its method. A
difference whose interval contains zero is called "not separated at this budget".
"""
_COMMANDS = """
```console
$ nsl reproduce list             # the tables, their rows, and which results are missing
$ nsl reproduce table4           # run the missing rows of one
$ nsl reproduce report           # write this page, the full report and the README's results
```
"""


def page_text(
    tables: Mapping[str, Mapping[str, RowResults]], at_length: Mapping[str, dict[str, RowResults]],
    equal_cost: Sequence[str], budget: str, page: Path, report: Path, pictures: Path,
) -> str:  # fmt: skip
    """The page, for its place on disk: links are relative to it.

    ``at_length`` has the results of the long budget that are shown beside the others, and
    ``equal_cost`` the paragraphs about the studies of equal cost.
    """
    parts = [
        "# Results",
        markdown.paragraph(_INTRODUCTION),
        markdown.paragraph(_HOW_TO_READ),
        markdown.paragraph(
            f"[The full report]({link(report, page)}) has all tables, with every deviation from "
            f"the paper, the data and the machine. This page is generated: `nsl reproduce report` "
            f"writes it, so do not edit it."
        ),
        _COMMANDS.strip(),
        *equal_cost,
    ]
    for name in ON_PAGE:
        if name in tables and has_finished(tables[name]):
            parts += _table_text(name, tables[name], budget)
            parts += picture_text(name, tables[name], pictures, page)
        if name in at_length and has_finished(at_length[name]):
            parts += _table_text(name, at_length[name], "long")
    return "\n\n".join(parts) + "\n"


def _table_text(name: str, rows: Mapping[str, RowResults], budget: str) -> Iterator[str]:
    table = TABLES[name]
    yield f"## {table.title}{longer(budget)}"
    yield markdown.paragraph(f"Table {table.number}. Our training: {table.budgets[budget]}.")
    yield short_text(table, rows)
    yield from pairs_text(table, rows, brief=True)
    if table.notes:
        yield markdown.paragraph(" ".join(table.notes))


def picture_text(
    name: str, rows: Mapping[str, RowResults], pictures: Path, page: Path
) -> Iterator[str]:
    """The picture of a table and its caption, if it has one."""
    if name in CAPTIONS and has_finished(rows):
        file, caption = CAPTIONS[name]
        yield f"![{caption.partition('.')[0]}]({link(pictures / file, page)})"
        yield markdown.paragraph(caption)


def has_finished(rows: Mapping[str, RowResults]) -> bool:
    """Whether any run was trained to its end."""
    return any(row.finished for row in rows.values())


def link(file: Path, page: Path) -> str:
    """The path of a file as a link on a page."""
    return Path(os.path.relpath(file, page.parent)).as_posix()
