"""``nsl data``: list, download and check data sets."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .shared.options import DataDir
from .shared.printing import print_line, printable
from .shared.signals import says_on_interrupt

if TYPE_CHECKING:
    from ..data.fetching.get import Callback

__all__ = ["app"]


app = typer.Typer(
    help="List, download and check data sets.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Name = Annotated[
    str, typer.Argument(metavar="NAME", help="Name of the data set; nsl data list shows all.")
]


@app.command("list")
def list_(data_dir: DataDir = None) -> None:
    """List all data sets: their sources, and which are here."""
    from rich.console import Console
    from rich.table import Table

    from ..data import data_directory, dataset_info, list_datasets
    from ..data.fetching.get import find
    from ..data.fetching.sources import SOURCES

    root = data_directory(data_dir)
    table = Table("name", "kind", "here", box=None, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("description and source", overflow="fold")
    by_hand = []
    for name in list_datasets():
        info, source = dataset_info(name), SOURCES.get(name)
        is_built_in = source is not None and not source.names
        if source is None or (source.names and not source.files):
            by_hand.append(name)
        here = "always" if is_built_in else "yes" if source and find(source, root) else "no"
        table.add_row(name, info.kind, here, f"{info.description}\n{info.home}")
    # Lines are only wrapped for a terminal.
    console = Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else 200)
    console.print(table)
    print_line()
    print_line(f"Data sets are looked up in {root.absolute()}.")
    print_line(f"To download one: nsl data get NAME (not {', '.join(by_hand)})")


@app.command()
def get(
    name: Name,
    data_dir: DataDir = None,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Overwrite existing files that differ from the published ones."
        ),
    ] = False,
) -> None:
    """Download, verify and unpack a data set.

    After an interruption, run the same command again: it continues where it stopped. Existing files
    are verified and not overwritten.

    \b
    Example:
      nsl data get cifar10 --data-dir ~/data
    """
    from .. import _check
    from ..data import data_directory, dataset_info, list_datasets
    from ..data.fetching.get import get_data

    _check.known_name("data get", "NAME", name, list_datasets())
    message = "interrupted; the same command continues where it stopped"
    with says_on_interrupt(message), _bars() as callback:
        result = get_data(name, data_directory(data_dir), force=force, callback=callback)
    folder, check = result.folder, f"nsl data check {name}"
    messages = {
        "made": f"nothing to download ({dataset_info(name).layout}).",
        "fetched": f"downloaded to {folder}, verified as published. Look at it with: {check}",
        "verified": f"already in {folder}, verified as published.",
        "there": f"already in {folder}. Look at it with: {check}",
        "other": f"already in {folder}, but the files differ from the published ones. They were "
        f"not changed. Look at them with: {check}; replace them with --force.",
    }
    print_line(f"{name}: {messages[result.state]}")


@app.command()
def check(
    name: Name,
    data_dir: DataDir = None,
    split: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SPLIT",
            help="Split to check, such as train; repeat the option for several. Default: all.",
            show_default=False,
        ),
    ] = None,
    strict: Annotated[
        bool,
        typer.Option("--strict", help="Exit with an error if a file is damaged or a class empty."),
    ] = False,
    sheet: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="PNG file for the contact sheet. Default: NAME.png in this folder.",
            show_default=False,
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite an existing contact sheet.")
    ] = False,
) -> None:
    """Read and verify a data set, and draw a contact sheet.

    This counts the images and classes of every split, verifies the labels, decodes all image files
    and lists the damaged ones. The contact sheet shows a few images of every class.

    \b
    Example:
      nsl data check cifar10 --sheet cifar10.png
    """
    from .shared.data_check import check_data

    check_data(name, data_dir, split or [], strict, sheet, force)


@contextmanager
def _bars() -> Iterator[Callback | None]:
    """A progress bar for every file, if standard error is a terminal."""
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
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )

    def callback(name: str, done: int, total: int | None) -> None:
        if name not in tasks:
            tasks[name] = progress.add_task(printable(name), total=total)
        progress.update(tasks[name], completed=done, total=total)

    with progress:
        yield callback
