"""Folders that appear whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import RunError

__all__ = ["check_folder", "whole_folder"]

_WRITING = ".writing-"


@contextmanager
def whole_folder(
    path: str | os.PathLike[str], marks: Collection[str], others: Collection[str], force: bool
) -> Iterator[Path]:
    """A temporary folder, whose files are at ``path`` when the block ends well.

    A folder that is there is filled if it is empty, and replaced if ``force`` is given and it holds
    the files ``marks``, by which it is known to be of our making, and no others than ``others``.
    """
    target = Path(path)
    check_folder(target, marks, others, force)
    there = target.is_dir()
    target.absolute().parent.mkdir(parents=True, exist_ok=True)
    # A folder that is there may be where somebody stands, or a disk of its own: it stays.
    place = target if there else target.absolute().parent
    with tempfile.TemporaryDirectory(dir=place, prefix=_WRITING) as beside:
        made, old = Path(beside) / "new", Path(beside) / "old"
        made.mkdir()
        yield made
        if there:
            old.mkdir()
            for file in _content(target):
                file.rename(old / file.name)
            for file in sorted(made.iterdir(), key=lambda file: file.name in marks):
                file.rename(target / file.name)
        else:
            made.rename(target)


def check_folder(path: Path, marks: Collection[str], others: Collection[str], force: bool) -> None:
    """Raise unless :func:`whole_folder` may put a folder there."""
    if not path.exists() or (path.is_dir() and not _content(path)):
        return
    if not force:
        raise RunError(
            f"{path}: expected a new folder, got one that is there. Choose another, or replace it "
            f"with force (--force)."
        )
    if not all((path / mark).is_file() for mark in marks):
        raise RunError(
            f"{path}: expected a folder with {' and '.join(marks)} to replace, got something else. "
            f"It is left alone. Choose another."
        )
    known = {*marks, *others}
    for file in _content(path):
        if file.name not in known or file.is_dir():
            raise RunError(
                f"{path}: expected nothing but what was written there to replace, got "
                f"{file.name!r} as well. It is left alone. Choose another, or move that away."
            )


def _content(folder: Path) -> list[Path]:
    """What is in a folder, but for what is being written."""
    return sorted(file for file in folder.iterdir() if not file.name.startswith(_WRITING))
