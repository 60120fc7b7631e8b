"""Open a project: one process at a time, leaving no trace if it cannot be opened."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..._io import locked
from ...adapt.image_folder import check_not_split
from ...errors import RunError
from .store import PARTS, PRIVATE, Project

__all__ = ["open_project"]


@contextmanager
def open_project(path: str | os.PathLike[str]) -> Iterator[Project]:
    """A project that this process has to itself until the end of the block.

    If the block raises before anything was written, for example because a folder is refused, none
    of our files are left in it.

    Args:
        path: a folder with a folder per class; it is created if missing.
    """
    folder = Path(path).absolute()
    if folder.exists() and not folder.is_dir():
        raise RunError(f"{path}: expected a folder, got a file. Name a folder for your classes.")
    is_new, private = not folder.exists(), folder / PRIVATE
    is_untouched = not private.exists()
    if is_untouched and not is_new:
        check_not_split(folder)
    for place in (
        private,
        *(private / name for name in (*PARTS, "lock")),
    ):  # it may come from someone else
        if place.is_symlink():
            raise RunError(f"{place}: expected a folder, got a link. Remove it, and start again.")
    private.mkdir(parents=True, exist_ok=True)
    with locked(private / "lock") as free:
        if not free:
            raise RunError(
                f"{path}: expected a project that is not open, got one that another `nsl teach` "
                f"has open. Use its page, or end it first."
            )
        try:
            yield Project(folder)
        except BaseException:
            if is_untouched and not _holds_files(private):
                shutil.rmtree(private, ignore_errors=True)
                if is_new and not any(folder.iterdir()):
                    folder.rmdir()
            raise


def _holds_files(private: Path) -> bool:
    """Whether our folder in a project holds anything besides its lock."""
    return any(path.name != "lock" and not path.is_dir() for path in private.rglob("*"))
