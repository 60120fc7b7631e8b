"""Files written atomically, and the cache directory."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .scratch import flush, scratch_folder, speaks_of

__all__ = ["cache_directory", "make_private_folder", "whole_file", "write_file"]


def cache_directory() -> Path:
    """The cache directory: ``$NEURAL_SIMILARITY_CACHE``, or one in the user's cache folder."""
    path = os.environ.get("NEURAL_SIMILARITY_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    try:
        return Path(path or f"{base}/neural_similarity").expanduser()
    except RuntimeError:
        raise OSError(
            errno.ENOTDIR,
            "expected a home folder for the cache, got none; set NEURAL_SIMILARITY_CACHE instead",
            "~",
        ) from None


def make_private_folder(folder: Path) -> None:
    """Create a folder and its parents, only for this user; existing ones are left unchanged."""
    if not folder.is_dir():
        make_private_folder(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


@contextmanager
def whole_file(path: str | os.PathLike[str], overwrite: bool = True) -> Iterator[Path]:
    """A temporary path, moved to ``path`` if the block succeeds.

    If it fails, whatever was at ``path`` is unchanged, and nothing is left next to it.

    Args:
        path: where the file goes.
        overwrite: replace an existing file; otherwise that is a FileExistsError.
    """
    target = Path(path)
    if not target.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "no such folder", str(target.parent))
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, "expected a file, got a folder", str(target))
    with scratch_folder(target.parent) as folder, speaks_of(target, folder / target.name):
        file = folder / target.name
        yield file
        flush(file)
        if not overwrite:
            _move_to_new(file, target)
            return
        if target.exists():
            shutil.copymode(target, file)
        file.replace(target)


def write_file(path: str | os.PathLike[str], content: bytes, overwrite: bool = True) -> None:
    """Write a file completely or not at all, even if the machine crashes.

    Args:
        path: where the file goes.
        content: the bytes to write.
        overwrite: replace an existing file; otherwise that is a FileExistsError.
    """
    with whole_file(path, overwrite) as file:
        file.write_bytes(content)


def _move_to_new(file: Path, target: Path) -> None:
    """Give a file its final name, unless that name is taken."""
    try:
        target.hardlink_to(file)  # fails if the name is taken, where renaming would overwrite
    except OSError:  # the name is taken, or this system has no hard links
        if target.exists():
            raise FileExistsError(
                errno.EEXIST, "expected a new file, got one that exists", str(target)
            ) from None
        file.replace(target)
