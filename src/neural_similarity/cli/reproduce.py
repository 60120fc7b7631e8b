"""``nsl reproduce``: the paper's tables, from the experiments in a clone of the repository."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from .shared.experiments import Experiments, clone_folder, load_experiments
from .shared.printing import print_line
from .shared.signals import says_on_interrupt

__all__ = ["app"]


class TableGroup(TyperGroup):
    """``nsl reproduce table4`` is short for ``nsl reproduce run table4``."""

    # Typer has its own copy of click's classes in some versions: hence Any.
    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in self.commands:
            args = ["run", *args]
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=TableGroup,
    help="Reproduce the paper's tables (in a clone of the repository).\n\n"
    "Train what is missing, then write a report of the results. Every run leaves one JSON file, "
    "which is never changed. A killed run can be continued, and several processes can share the "
    "work.\n\n"
    "\b\nnsl reproduce list                    tables, rows, and how many seeds are done\n"
    "nsl reproduce table4 --seeds 3        short for: nsl reproduce run table4 --seeds 3\n"
    "nsl reproduce report                  REPORT.md, docs/results.md, README.md, docs/choose.md",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Tables = Annotated[
    list[str],
    typer.Argument(
        metavar="TABLE",
        help="Tables, such as table4, table6-mini or equal-cost; nsl reproduce list shows them.",
    ),
]
Budget = Annotated[
    str,
    typer.Option(
        help="smoke (seconds), short (minutes to half an hour per row), long (up to 3 hours "
        "per row) or paper (the paper's schedule, for GPUs)."
    ),
]
Seeds = Annotated[int, typer.Option(min=1, help="Number of seeds, starting at 0.")]
Rows = Annotated[
    str,
    typer.Option(
        help="Only these rows, such as cnn,static-diagonal, and the rows they start from; nsl "
        "reproduce list shows them."
    ),
]
Data = Annotated[
    Path | None,
    typer.Option(help="Folder of the data sets. Default: $NEURAL_SIMILARITY_DATA, or ./data."),
]
Results = Annotated[
    Path | None,
    typer.Option(help="Folder of the JSON files (default: experiments/results of the clone)."),
]
Work = Annotated[Path, typer.Option(help="Folder of the runs themselves.")]


@app.command("list")
def list_(budget: Budget = "short", seeds: Seeds = 3, results: Results = None) -> None:
    """List tables and rows, and how many seeds of each are done.

    A result still counts if the settings of its row have changed since. To run it again, move its
    JSON file and its run folder away.
    """
    experiments = load_experiments()
    for line in experiments.list_tables(budget, seeds, results or experiments.RESULTS):
        print_line(line)


@app.command()
def run(
    tables: Tables,
    budget: Budget = "short",
    seeds: Seeds = 3,
    rows: Rows = "",
    data_dir: Data = None,
    results: Results = None,
    work: Work = Path("runs/reproduce"),
) -> None:
    """Run the missing rows of tables; "run" can be left out.

    After an interruption or a kill, run the same command again to continue.

    \b
    nsl reproduce table4
    nsl reproduce table4 --rows cnn,dynamic-diagonal --seeds 1
    nsl reproduce run table4 table2 --budget smoke
    """
    _run(load_experiments(), tables, budget, seeds, rows, data_dir, results, work)


@app.command("all")
def run_all(
    budget: Budget = "short",
    seeds: Seeds = 3,
    data_dir: Data = None,
    results: Results = None,
    work: Work = Path("runs/reproduce"),
) -> None:
    """Run the missing rows of all tables, in the order of the list."""
    experiments = load_experiments()
    names = experiments.table_names()
    _run(experiments, names, budget, seeds, "", data_dir, results, work)


@app.command()
def report(
    budget: Budget = "short",
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; exit with 2 if a text is out of date.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="Another file for the full report, instead of the clone's.")
    ] = None,
    page: Annotated[
        Path | None, typer.Option(help="With --out: a file for the results page.")
    ] = None,
    readme: Annotated[
        Path | None,
        typer.Option(help="With --out: a copy of README.md whose results are replaced."),
    ] = None,
    results: Results = None,
) -> None:
    """Write the results as tables and pictures.

    It reads only the JSON files. Without --out it writes, in the clone that nsl belongs to:
    experiments/REPORT.md, docs/results.md with its pictures, and the results in README.md and
    docs/choose.md.

    \b
    nsl reproduce report
    nsl reproduce report --check
    nsl reproduce report --budget paper --out runs/paper.md
    """
    experiments = load_experiments()
    folder = results or experiments.RESULTS
    if out is None and not check and Path.cwd() != clone_folder():
        print_line(f"results: {folder.resolve()}, report: in {clone_folder()}")
    files = experiments.report(
        budget, out=out, page=page, readme=readme, results=folder, check=check
    )
    if check:
        print_line("The report agrees with the JSON files.")
    for file in files:
        print_line(f"wrote {file}")


def _run(
    experiments: Experiments,
    tables: Sequence[str],
    budget: str,
    seeds: int,
    rows: str,
    data_dir: Path | None,
    results: Path | None,
    work: Path,
) -> None:
    from .shared.progress import QueueBar, TrainingBar, progress_bar

    folder = results or experiments.RESULTS
    if Path.cwd() != clone_folder():
        print_line(f"results: {folder.resolve()}, runs: {work.resolve()}")
    message = "stopped. Run the same command to continue."
    with says_on_interrupt(message), progress_bar(*TrainingBar.columns()) as bar:
        queue_bar = QueueBar(bar)
        experiments.run(
            tables,
            budget,
            seeds,
            [name.strip() for name in rows.split(",") if name.strip()],
            work=work,
            results=folder,
            data_dir=data_dir,
            log=print_line,
            callback=queue_bar.training,
            test_callback=queue_bar.tests,
        )
