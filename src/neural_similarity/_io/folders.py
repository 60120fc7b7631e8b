"""Folders written completely or not at all, and exclusive use of a folder."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from .locks import locked
from .scratch import JOURNAL, entries, remove_leftovers, scratch_folder, speaks_of
from .swap import exchange, finish_swaps, swap_files

__all__ = ["alone_in", "settle", "whole_folder"]


@contextmanager
def alone_in(folder: Path) -> Iterator[bool]:
    """Whether this process has exclusive use of a folder, until the end of the block.

    If it does, what a killed process left there is finished or removed first.
    """
    with locked(folder) as free:
        if free:
            finish_swaps(folder)
            remove_leftovers(folder)
        yield free


def settle(folder: Path) -> None:
    """Finish or remove what a killed process left in a folder; usually there is nothing."""
    if entries(folder, JOURNAL):  # otherwise no lock is needed
        with alone_in(folder):
            pass
    remove_leftovers(folder)


@contextmanager
def whole_folder(
    path: str | os.PathLike[str], check: Callable[[], None] = lambda: None, *, keep: bool = False
) -> Iterator[Path]:
    """A new folder, moved to ``path`` if the block succeeds, in place of the old one.

    Old and new are swapped in one step where the system can. Where it cannot, and where the old
    folder itself has to stay because it is in use or a mount point, the files are swapped one by
    one; :func:`settle` finishes a swap that was interrupted. The old files are deleted only after
    all new ones are in place.

    Args:
        path: where the folder goes.
        check: raises if what is at ``path`` must not be replaced; called just before the swap.
        keep: keep the old folder itself, on which the caller holds the lock of :func:`alone_in`.
            Otherwise it is locked during the swap; if another process holds the lock, that is an
            OSError.
    """
    target = Path(path).resolve()
    target.parent.mkdir(parents=True, exist_ok=True)
    stays = keep or (target.is_dir() and _must_stay(target))
    if not keep:
        settle(target)
    place = target if stays else target.parent
    with scratch_folder(place) as scratch, speaks_of(target, new := scratch / "new"):
        new.mkdir()
        yield new
        if keep:
            check()
            swap_files(new, target)
        elif not target.is_dir():
            check()
            new.rename(target)
        else:
            with alone_in(target) as free:
                if not free:
                    raise OSError(
                        errno.EBUSY, "another process is writing to this folder", str(target)
                    )
                check()
                shutil.copymode(target, new)
                if stays or not exchange(new, target):
                    swap_files(new, target)


def _must_stay(folder: Path) -> bool:
    """Whether a folder cannot be moved: it is in use, a mount point, or in a read-only folder."""
    fixed = not os.access(folder.parent, os.W_OK)
    return fixed or os.path.ismount(folder) or Path.cwd().is_relative_to(folder)
