"""Reproduce the paper's tables: list them, run what is missing, write the report.

These are the functions that ``nsl reproduce`` calls. Nothing here prints: progress goes to the
callbacks that the caller passes in.

Example::

    from pathlib import Path
    from experiments import reproduce

    reproduce.run(["table4"], budget="smoke", seeds=1, work=Path("runs/reproduce"))
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from neural_similarity.errors import RunError, UnknownNameError

from .queue.jobs import jobs_of
from .queue.worker import Callback, Queue
from .records import RESULTS
from .report.row_results import outdated, read_table
from .report.write import Report
from .tables.base import BUDGETS, SEEDS, check_budget
from .tables.equal_cost import STUDIES
from .tables.registry import TABLES, find_tables

__all__ = ["RESULTS", "list_tables", "report", "run", "table_names"]


LEGEND = (
    "Titles: NSN: neural similarity network; DNS: diagonal similarity; UNS: unconstrained "
    "similarity; †: not in the paper."
)


def table_names() -> list[str]:
    """All tables, in the order in which they are run; then the studies of equal cost."""
    return [*TABLES, *STUDIES]


def list_tables(
    budget: str = "short", seeds: int = SEEDS, results: Path = RESULTS
) -> Iterator[str]:
    """Lines of text: budgets, tables, rows, and how many seeds of each row are done."""
    check_budget(budget)
    yield "Budgets:"
    yield from (f"  {name:6} {meaning}" for name, meaning in BUDGETS.items())
    yield ""
    yield LEGEND
    for table in (*TABLES.values(), *STUDIES.values()):
        if budget not in table.budgets:
            continue
        yield ""
        yield f"{table.name}: {table.title}"
        yield f"  {budget}: {table.budgets[budget]}"
        rows = read_table(table, results, budget)
        for name, row in rows.items():
            count = sum(seed in row.by_seed for seed in range(seeds))
            old = len(outdated(rows, name))
            note = f", {old} with other settings" if old else ""
            yield f"  {name:24} {row.row.title:76} {count} of {seeds}{note}"


def run(
    tables: Sequence[str],
    budget: str = "short",
    seeds: int = SEEDS,
    rows: Sequence[str] = (),
    *,
    work: Path,
    results: Path = RESULTS,
    data_dir: Path | None = None,
    log: Callable[[str], None] = lambda line: None,
    callback: Callable[[str], Callback] | None = None,
    test_callback: Callable[[str, int, int], None] | None = None,
) -> None:
    """Run what has no result yet.

    Args:
        tables: names of tables.
        budget: smoke, short, long or paper.
        seeds: how many, from 0 on.
        rows: only these rows, and those that they start from; all if empty.
        work: folder of the runs themselves.
        results: folder of the result files.
        data_dir: folder of data sets.
        log: gets a line when a run starts, ends or waits.
        callback: from the name of a run to the function that gets its lines of metrics.
        test_callback: gets the name of a test, the number of episodes done, and their total.
    """
    check_budget(budget)
    chosen_tables = [table for name in tables for table in find_tables(name)]
    if not any(budget in table.budgets for table in chosen_tables):
        have_it = ", ".join(name for name, t in (TABLES | STUDIES).items() if budget in t.budgets)
        raise UnknownNameError(
            f"reproduce: expected tables with budget {budget!r} ({have_it}), got "
            f"{', '.join(tables)}."
        )
    jobs = jobs_of(chosen_tables, budget, seeds, rows)
    data = None if data_dir is None else str(data_dir)
    queue = Queue(results, work, data, log, callback, test_callback)
    log(f"runs: {len(jobs)}, missing: {len(queue.missing(jobs))}")
    queue.run(jobs)


def report(
    budget: str = "short",
    *,
    out: Path | None = None,
    page: Path | None = None,
    readme: Path | None = None,
    results: Path = RESULTS,
    check: bool = False,
) -> list[Path]:
    """Write the report; the files that were written.

    Without ``out``, the files of this clone are written: ``experiments/REPORT.md``,
    ``docs/results.md`` with its pictures, and the results in ``README.md`` and ``docs/choose.md``.

    Args:
        budget: which results.
        out: another file for the full report.
        page: with ``out``, a file for the results page.
        readme: with ``out``, a file with markers for the headlines.
        results: folder of the result files.
        check: write nothing, and raise if a text is not what the result files give.
    """
    check_budget(budget)
    if out is None and (budget != "short" or page is not None or readme is not None):
        raise RunError(
            "reproduce report: expected --out with --page, --readme or a budget other than short, "
            "got none. The files of the clone show the short budget. Name another file with --out."
        )
    files = Report(results) if out is None else Report(results, budget, out, page, readme, None)
    if check:
        files.check()
        return []
    return files.write()
