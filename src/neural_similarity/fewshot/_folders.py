"""Folders that appear whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ..errors import RunError

__all__ = ["check_folder", "whole_folder"]


@contextmanager
def whole_folder(path: str | os.PathLike[str], marks: Sequence[str], force: bool) -> Iterator[Path]:
    """A temporary folder beside ``path``, moved there when the block ends well.

    A folder that is there is replaced if ``force`` is given and it holds the files ``marks``, by
    which it is known to be of our making; anything else is left alone.
    """
    target = Path(path)
    check_folder(target, marks, force)
    target.absolute().parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.absolute().parent, prefix=".writing-") as beside:
        made = Path(beside) / "new"
        made.mkdir()
        yield made
        if target.exists():
            target.rename(Path(beside) / "old")
        made.rename(target)


def check_folder(path: Path, marks: Sequence[str], force: bool) -> None:
    """Raise unless :func:`whole_folder` may put a folder there."""
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return
    if not force:
        raise RunError(
            f"{path}: expected a new folder, got one that is there. Choose another, or replace it "
            f"with force."
        )
    if not all((path / mark).is_file() for mark in marks):
        raise RunError(
            f"{path}: expected a folder with {' and '.join(marks)} to replace, got something else. "
            f"It is left alone. Choose another."
        )
