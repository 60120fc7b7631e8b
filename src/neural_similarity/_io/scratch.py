"""Scratch folders: where things are written before they are moved into place."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from . import locks

__all__ = [
    "JOURNAL",
    "entries",
    "flush",
    "foreign_entries",
    "has_writers",
    "remove_leftovers",
    "scratch_folder",
    "speaks_of",
]

JOURNAL = ".nsl-swap-"
_SCRATCH = ".nsl-scratch-"


@contextmanager
def scratch_folder(parent: Path) -> Iterator[Path]:
    """A new folder in ``parent``, removed at the end; those of dead processes are removed first."""
    remove_leftovers(parent)
    folder, handle = _locked_folder(parent)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        locks.close(handle)


def foreign_entries(folder: Path) -> list[Path]:
    """The entries of a folder, sorted, without our scratch folders and journals."""
    ours = (_SCRATCH, JOURNAL)
    return sorted(entry for entry in folder.iterdir() if not entry.name.startswith(ours))


def has_writers(folder: Path) -> bool:
    """Whether a running process is writing a file in this folder, as far as locks can tell."""
    return any(locks.is_held(scratch) for scratch in entries(folder, _SCRATCH))


def remove_leftovers(parent: Path) -> None:
    """Remove the scratch folders of processes that are no longer running."""
    for folder in entries(parent, _SCRATCH):
        with locks.abandoned(folder) as is_abandoned:
            if is_abandoned:
                shutil.rmtree(folder, ignore_errors=True)


def entries(folder: Path, prefix: str) -> list[Path]:
    """The subfolders whose names begin with ``prefix``, without links: we make none."""
    try:
        with os.scandir(folder) as listing:
            return [
                Path(entry.path)
                for entry in listing
                if entry.name.startswith(prefix) and entry.is_dir(follow_symlinks=False)
            ]
    except OSError:
        return []


def flush(path: Path) -> None:
    """Flush a file or folder from the system's cache to the disk."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except PermissionError:  # folders cannot be opened on every system
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def speaks_of(target: Path, place: Path) -> Iterator[None]:
    """Make disk errors name ``target``, which the user knows, instead of the scratch folder.

    Args:
        target: the final path.
        place: the current path, in a scratch folder.
    """
    try:
        yield
    except OSError as error:
        for name in ("filename", "filename2"):
            path = getattr(error, name)
            if isinstance(path, str | os.PathLike) and Path(path).is_relative_to(place.parent):
                inside = Path(path).is_relative_to(place)
                final_path = target / Path(path).relative_to(place) if inside else target
                setattr(error, name, str(final_path))
        raise


def _locked_folder(parent: Path) -> tuple[Path, int | None]:
    """A new folder and the open handle that locks it."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=_SCRATCH, dir=parent))
        if not locks.AVAILABLE:
            return folder, None
        try:
            handle = locks.open_locked(folder, is_folder=True)
        except FileNotFoundError:
            handle = None
        if handle is not None:
            return folder, handle
        # Another process took it for a leftover before we locked it.
