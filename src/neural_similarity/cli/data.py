"""``nsl data``: which data sets there are, fetch one, look at one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ._options import DataDir

if TYPE_CHECKING:
    from ..data.fetching.get import Callback

__all__ = ["app"]

INTERRUPTED = 130

app = typer.Typer(
    help="Data sets: which there are, fetch one, look at one.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="A data set; nsl data list names them.")]


@app.command("list")
def list_(data_dir: DataDir = None) -> None:
    """Tell which data sets there are, which of them are here, and where they come from."""
    from rich.console import Console
    from rich.table import Table

    from ..data import data_directory, dataset_info, list_datasets
    from ..data.fetching.get import find
    from ..data.fetching.sources import SOURCES

    root = data_directory(data_dir)
    table = Table("name", "kind", "here", box=None, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("what it is, and its home", overflow="fold")
    for name in list_datasets():
        info, source = dataset_info(name), SOURCES.get(name)
        made = source is not None and not source.names
        here = "always" if made else "yes" if source and find(source, root) else "no"
        table.add_row(name, info.kind, here, f"{info.description}\n{info.home}")
    # Where nobody looks at a screen, lines need not be folded to fit one.
    console = Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else 200)
    console.print(table)
    console.print(f"\nLooked in {root}. Fetch one: nsl data get NAME")


@app.command()
def get(
    name: Name,
    data_dir: DataDir = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace what is there, unless it is as published.")
    ] = False,
) -> None:
    """Fetch a data set from its home, verify and unpack it.

    Interrupted, the same command goes on where it stopped. What is there already is verified and
    left alone.

    \b
    Example: nsl data get cifar10 --data-dir ~/data
    """
    from .. import _check
    from ..data import data_directory, dataset_info, list_datasets
    from ..data.fetching.get import get_data

    _check.known_name("data get", "NAME", name, list_datasets())
    try:
        with _bars() as callback:
            got = get_data(name, data_directory(data_dir), force=force, callback=callback)
    except KeyboardInterrupt:
        print("nsl: interrupted; the same command goes on where it stopped", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None
    look = f"nsl data check {name}"
    told = {
        "made": f"nothing to fetch ({dataset_info(name).layout}).",
        "fetched": f"fetched to {got.folder}, as published. Look at it with: {look}",
        "verified": f"already in {got.folder}, as published.",
        "there": f"already in {got.folder}. Look at it with: {look}",
        "other": f"already in {got.folder}, and not the published files. It is left as it was. "
        f"Look at it with: {look}; replace it with --force.",
    }
    print(f"{name}: {told[got.state]}")


@app.command()
def check(
    name: Name,
    data_dir: DataDir = None,
    split: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SPLIT",
            help="A part of the set; give it again for another. Otherwise all.",
            show_default=False,
        ),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="End with an error at a damaged file.")
    ] = False,
    sheet: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Where to draw a contact sheet (PNG); otherwise NAME.png right here.",
            show_default=False,
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace a contact sheet that is there.")
    ] = False,
) -> None:
    """Read a data set, count and verify it, and draw a contact sheet.

    Images and classes of every part are counted, labels are verified, image files are decoded and
    damaged ones are listed.

    \b
    Example: nsl data check cifar10 --sheet cifar10.png
    """
    from ._data_check import check_data

    check_data(name, data_dir, split or [], strict, sheet, force)


@contextmanager
def _bars() -> Iterator[Callback | None]:
    """A bar with rate and time left for every file, if somebody looks."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TaskID,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    tasks: dict[str, TaskID] = {}
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )

    def callback(name: str, done: int, total: int | None) -> None:
        if name not in tasks:
            tasks[name] = progress.add_task(name, total=total)
        progress.update(tasks[name], completed=done, total=total)

    with progress:
        yield callback
