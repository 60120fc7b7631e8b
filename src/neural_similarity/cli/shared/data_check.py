"""The work of ``nsl data check``."""

from __future__ import annotations

from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from ... import _check
from ...data import FolderSet, ImageSet, data_directory, dataset_info, list_datasets, load_dataset
from ...data.fetching.get import find, verify
from ...data.fetching.sources import SOURCES
from ...data.folders import is_split
from ...errors import DataError
from ...plot.contact_sheet import draw_contact_sheet
from .printing import print_line

__all__ = ["check_data"]

_MOST_NAMES = 20


def check_data(
    name: str,
    data_dir: Path | None,
    splits: list[str],
    strict: bool,
    sheet: Path | None,
    force: bool,
) -> None:
    """Read every split, print a table, list the problems, draw a sheet of the first split."""
    _check.known_name("data check", "NAME", name, list_datasets())
    root = data_directory(data_dir)
    splits = splits or _splits(name, root)
    for split in splits:
        _check.known_name(f"data check {name}", "--split", split, dataset_info(name).splits)
    target = _sheet(name, sheet, force)
    datasets: dict[str, ImageSet] = {}
    first_error: DataError | None = None
    for number, split in enumerate(splits):
        # Both parts of a folder that is divided here have the same files.
        fresh = number == 0 or name != "imagefolder" or is_split(root)
        try:
            datasets[split] = load_dataset(name, split, root, strict=strict, fresh=fresh)
        except DataError as error:  # raised after the other splits are printed
            first_error = first_error or error
    empty = _print(name, root, datasets) if datasets else []
    if datasets:
        _draw(name, datasets, target)
    if first_error:
        raise first_error
    if strict and empty:
        raise DataError(
            f"{name}: expected images of every class, got none of "
            f"{', '.join(empty[:_MOST_NAMES])}. Leave out --strict to ignore this."
        )


def _splits(name: str, root: Path) -> list[str]:
    """All splits; an image folder does not need a validation split."""
    optional = name == "imagefolder" and not (root / "val").is_dir()
    return [s for s in dataset_info(name).splits if not (optional and s == "val")]


def _sheet(name: str, sheet: Path | None, force: bool) -> Path | None:
    """Where to draw; None if there was no ``--sheet`` and the default file exists."""
    target = sheet or Path(f"{name}.png")
    if not target.parent.is_dir():
        raise DataError(
            f"data check: expected --sheet in an existing folder, got {target}. Create "
            f"{target.parent} first."
        )
    if not target.exists() or force:
        return target
    if sheet is None:
        return None
    raise DataError(
        f"data check: expected --sheet to name a new file, got {target}, which exists. "
        f"Choose another name, or overwrite it with --force."
    )


def _print(name: str, root: Path, datasets: dict[str, ImageSet]) -> list[str]:
    """Print what was read; return the classes without images."""
    head = ("split", "images", "classes", "images per class", "size", "fingerprint")
    table = Table(*head, box=None, padding=(0, 2, 0, 0))
    empty: list[str] = []
    skipped: dict[Path, str] = {}
    for split, dataset in datasets.items():
        counts = torch.bincount(dataset.labels, minlength=dataset.num_classes)
        least, most = int(counts.min()), int(counts.max())
        height, width = dataset.image_size
        table.add_row(
            split,
            f"{len(dataset):,}",
            f"{dataset.num_classes:,}",
            f"{least:,}" if least == most else f"{least:,} to {most:,}",
            f"{dataset.in_channels} × {height} × {width}",
            dataset.fingerprint,
        )
        empty += [f"{split}/{c}" for c, n in zip(dataset.classes, counts, strict=True) if not n]
        if isinstance(dataset, FolderSet):
            skipped |= {bad.path: bad.reason for bad in dataset.skipped}
    console = Console(highlight=False, markup=False)
    console.print(table)
    print_line(f"files: {_files(name, root)}")
    _print_list("damaged files", [f"{path} ({reason})" for path, reason in skipped.items()])
    _print_list("classes without images", empty)
    return empty


def _files(name: str, root: Path) -> str:
    source = SOURCES.get(name)
    if source is None or not source.names:
        return "none; the data set needs no files"
    folder = find(source, root)
    if folder is None:
        return f"in {root}"
    state = verify(source, folder)
    notes = {"verified": ", as published", "other": ", readable, but not the published ones"}
    return f"in {folder}{notes.get(state, '')}"


def _print_list(title: str, lines: list[str]) -> None:
    if not lines:
        return
    print_line(f"{title}: {len(lines)}")
    for line in lines[:_MOST_NAMES]:
        print_line(f"  {line}")
    if len(lines) > _MOST_NAMES:
        print_line(f"  and {len(lines) - _MOST_NAMES} more")


def _draw(name: str, datasets: dict[str, ImageSet], target: Path | None) -> None:
    if target is None:
        print_line(f"contact sheet: {name}.png exists and was not changed; --force overwrites it")
        return
    split, dataset = max(datasets.items(), key=lambda one: len(one[1]) > 0)
    if not len(dataset):
        print_line("contact sheet: none, because no image could be read")
        return
    draw_contact_sheet(dataset, target, split=split)
    print_line(f"contact sheet: {target}")
