"""What `nsl reproduce` does: the paper's tables, row by row, and a report of what was found."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from neural_similarity.errors import RunError, UnknownNameError

from .records import RESULTS
from .tables.registry import TABLES, table
from .tables.row import BUDGETS, SEEDS

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

__all__ = ["app"]

WORK = Path("runs/reproduce")

app = typer.Typer(
    help="Reproduce the paper's tables: train what is missing, then report what was found.\n\n"
    "Every run leaves one JSON file, which is never edited. Runs that were killed go on where they "
    "were, and several processes may share the work.\n\n"
    "\b\nnsl reproduce list\nnsl reproduce table4 --budget short --seeds 3\nnsl reproduce report",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Budget = Annotated[str, typer.Option(help="smoke, short or paper; see nsl reproduce list.")]
Seeds = Annotated[int, typer.Option(min=1, help="How many seeds, from 0 on.")]
Rows = Annotated[
    str,
    typer.Option(
        help="Only these rows, as in cnn,static-diagonal, and those that they begin with; "
        "nsl reproduce list names them."
    ),
]
Data = Annotated[
    Path | None,
    typer.Option(help="Where data sets are; otherwise $NEURAL_SIMILARITY_DATA, otherwise ./data."),
]
Results = Annotated[
    Path, typer.Option(help="Folder of the JSON files.", show_default="experiments/results")
]
Work = Annotated[Path, typer.Option(help="Folder of the runs themselves.")]


@app.command("list")
def list_tables(budget: Budget = "short", seeds: Seeds = SEEDS, results: Results = RESULTS) -> None:
    """Tables and rows, and how many seeds of each are done.

    A result that was made with other settings than its row has now stays and counts: move its file,
    and its run in the folder of work, away to have it made again.
    """
    from .report.comparison import outdated, read_table

    _check_budget(budget)
    print("Budgets:")
    for name, meaning in BUDGETS.items():
        print(f"  {name:6} {meaning}")
    for one in TABLES.values():
        print(f"\n{one.name}: {one.title}\n  {budget}: {one.budgets[budget]}")
        runs = read_table(one, results, budget)
        for name, of in runs.items():
            done = sum(seed in of.by_seed for seed in range(seeds))
            old = len(outdated(runs, name))
            said = f", {old} with other settings" if old else ""
            print(f"  {name:24} {of.row.title:70} {done} of {seeds}{said}")


def _table_command(name: str, title: str) -> None:
    @app.command(name, help=f"{title}.\n\nAt the short budget: {TABLES[name].budgets['short']}.")
    def run_table(
        budget: Budget = "short",
        seeds: Seeds = SEEDS,
        rows: Rows = "",
        data_dir: Data = None,
        results: Results = RESULTS,
        work: Work = WORK,
    ) -> None:
        _run([name], budget, seeds, rows, data_dir, results, work)


for _one in TABLES.values():
    _table_command(_one.name, _one.title)


@app.command("all")
def run_all(
    budget: Budget = "short",
    seeds: Seeds = SEEDS,
    data_dir: Data = None,
    results: Results = RESULTS,
    work: Work = WORK,
) -> None:
    """All tables, in the order of nsl reproduce list."""
    _run(list(TABLES), budget, seeds, "", data_dir, results, work)


@app.command("report")
def write_report(
    budget: Budget = "short",
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; end with 2 if a text is out of date.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="The report (default: REPORT.md and README.md of the clone)."),
    ] = None,
    readme: Annotated[
        Path | None, typer.Option(help="With --out: a file with markers for the short form.")
    ] = None,
    results: Results = RESULTS,
) -> None:
    """What was found, as tables and pictures, from the JSON files alone.

    Without --out, experiments/REPORT.md, its pictures and the results in README.md are written anew
    in the clone that nsl belongs to, wherever you are.

    \b
    nsl reproduce report
    nsl reproduce report --check
    nsl reproduce report --budget paper --out runs/paper.md
    """
    from .report.report import README, REPORT, Report

    _check_budget(budget)
    if out is None and (budget != "short" or readme is not None):
        raise RunError(
            "reproduce report: expected --out with --readme or with another budget than short, got "
            "none. experiments/REPORT.md and README.md tell of that one."
        )
    kept = Report(results, budget, REPORT, README)
    report = kept if out is None else Report(results, budget, out, readme)
    if check:
        report.check()
        print("The report is what the JSON files give.")
    else:
        for file in report.write():
            print(f"wrote {file}")


def _run(
    names: list[str],
    budget: str,
    seeds: int,
    rows: str,
    data_dir: Path | None,
    results: Path,
    work: Path,
) -> None:
    from neural_similarity.cli._progress import TrainingBar, progress_bar

    from .queue.jobs import jobs_of
    from .queue.queue import Queue

    _check_budget(budget)
    chosen = [name.strip() for name in rows.split(",") if name.strip()]
    jobs = jobs_of([table(name) for name in names], budget, seeds, chosen)
    with progress_bar(*TrainingBar.columns()) as bar:
        shown = _Shown(bar)
        queue = Queue(
            results,
            work,
            None if data_dir is None else str(data_dir),
            tell=lambda line: print(line, flush=True),
            callback=shown.training,
            tests=shown.tests,
        )
        missing = len(queue.missing(jobs))
        print(f"runs: {len(jobs)}, to be done: {missing}", flush=True)
        try:
            queue.run(jobs)
        except KeyboardInterrupt:
            bar.stop()
            print("nsl: stopped. The same command goes on.", file=sys.stderr)
            raise typer.Exit(130) from None


class _Shown:
    """The bar of what is being done; a queue is long, so what is over is taken away."""

    def __init__(self, bar: Progress) -> None:
        self.bar, self.name = bar, ""
        self.task: TaskID | None = None

    def training(self, name: str) -> Callable[[dict[str, Any]], None]:
        """A bar for a run, in place of the last."""
        from neural_similarity.cli._progress import TrainingBar

        self._take_away()
        callback = TrainingBar(self.bar, name)
        self.name, self.task = name, callback.task
        return callback

    def tests(self, name: str, done: int, total: int) -> None:
        """Episodes of a test, as far as they are."""
        if name != self.name:
            self._take_away()
            self.name = name
            self.task = self.bar.add_task(name, total=total, rate="", loss="", error="")
        if self.task is not None:
            self.bar.update(self.task, completed=done)

    def _take_away(self) -> None:
        if self.task is not None:
            self.bar.remove_task(self.task)
            self.task = None


def _check_budget(budget: str) -> None:
    if budget not in BUDGETS:
        raise UnknownNameError(
            f"reproduce: expected a budget among {', '.join(BUDGETS)}, got {budget!r}."
        )
