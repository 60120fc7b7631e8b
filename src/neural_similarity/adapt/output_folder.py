"""The folder that adapting writes: which files are ours, and when it may be overwritten."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .._io import foreign_entries, settle, whole_folder
from ..errors import RunError

__all__ = [
    "EXAMPLES", "LABELS", "MODEL", "check_output_folder", "is_adapted",
    "output_folder",
]  # fmt: skip

MODEL, LABELS, EXAMPLES = "model.safetensors", "labels.json", "examples.safetensors"
_MARKS = (MODEL, LABELS)  # they identify such a folder
_FILES = {
    *_MARKS, EXAMPLES, "README.txt", "calibration.png", "confusion.png", "model.onnx",
    "model.onnx.data", "report.html",
}  # fmt: skip


def is_adapted(folder: Path) -> bool:
    """Whether there is an adapted classifier in a folder."""
    return all((folder / mark).is_file() for mark in _MARKS)


def check_output_folder(path: str | os.PathLike[str], force: bool) -> None:
    """Raise unless the folder is new or empty, or ``force`` is given and all files are ours."""
    folder = Path(path)
    settle(folder)
    _check_can_write(folder)
    if not folder.exists() or (folder.is_dir() and not foreign_entries(folder)):
        return
    if not force:
        raise RunError(
            f"{folder}: expected a new folder, got one that exists. Choose another folder, or "
            f"overwrite this one (force, --force)."
        )
    if not is_adapted(folder):
        raise RunError(
            f"{folder}: expected a folder with {' and '.join(_MARKS)} to overwrite, got something "
            f"else. Nothing was changed. Choose another folder."
        )
    for entry in foreign_entries(folder):
        if entry.name not in _FILES or entry.is_dir():
            raise RunError(
                f"{folder}: expected only files of an adapted classifier to overwrite, got "
                f"{entry.name!r} as well. Nothing was changed. Choose another folder, or move "
                f"that file away."
            )


def _check_can_write(folder: Path) -> None:
    """Raise unless the folder is in one that can be written to, or can be made there."""
    parent = next(path for path in folder.absolute().parents if os.path.lexists(path))
    if not parent.is_dir():
        raise RunError(
            f"{folder}: expected a folder to write to, got a path through {parent}, which is not "
            f"a folder. Choose another one."
        )
    if not os.access(parent, os.W_OK | os.X_OK):
        raise RunError(
            f"{folder}: expected a folder to write to, got one in {parent}, which is read-only. "
            f"Choose another one."
        )


@contextmanager
def output_folder(path: str | os.PathLike[str], force: bool) -> Iterator[Path]:
    """A new folder, moved to ``path`` if the block succeeds; see ``_io.whole_folder``."""
    check_output_folder(path, force)
    with whole_folder(path, lambda: check_output_folder(path, force)) as folder:
        yield folder
