"""Disk access of fetching and unpacking: one process at a time, and errors in one sentence."""

from __future__ import annotations

import errno
import gzip
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path

from ..._io import try_lock
from ...errors import FetchError

__all__ = ["append", "exclusive", "length", "writing"]


@contextmanager
def exclusive(part: Path) -> Iterator[FileIO]:
    """A file to append to, only for this process; removed if it is still empty at the end.

    The operating system locks the file itself: the lock ends with its process, however that ends.
    """
    with writing("fetch", part):
        part.parent.mkdir(parents=True, exist_ok=True)
        file = _locked(part)
        while not _is_still(file, part):
            # Between our opening and our locking, another process moved it into place.
            file.close()
            file = _locked(part)
    with file:
        try:
            yield file
        finally:
            if _is_still(file, part) and not length(file):
                part.unlink()


@contextmanager
def writing(where: str, target: Path) -> Iterator[None]:
    """Turn a disk error into a FetchError that names the target and says what to do."""
    try:
        yield
    except gzip.BadGzipFile:  # an OSError too, and not the disk's fault
        raise
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        advice = "Free some space" if full else "Choose a writable folder (--data-dir)"
        # What mkdir raises if a file is where a folder should be.
        is_taken = isinstance(error, FileExistsError)
        reason = "a file in place of its folder" if is_taken else error.strerror or error
        raise FetchError(
            f"{where}: expected to write {target}, got: {reason}. Existing files are unchanged. "
            f"{advice}, then run the command again."
        ) from error


def append(file: FileIO, chunk: bytes) -> None:
    """Write all of it: an unbuffered file may take less at a time."""
    rest = memoryview(chunk)
    while rest:
        rest = rest[file.write(rest) :]


def length(file: FileIO) -> int:
    """The size of the file in bytes."""
    return os.fstat(file.fileno()).st_size


def _locked(part: Path) -> FileIO:
    try:
        file = FileIO(part, "a", opener=_open_plain)
    except OSError as error:
        if not part.is_symlink() and (part.is_file() or not part.exists()):
            raise
        raise FetchError(
            f"fetch: expected {part} to be a plain file, got a link or something else. Remove it, "
            f"then run the command again."
        ) from error
    if not try_lock(file.fileno()):
        file.close()
        raise FetchError(
            f"fetch: expected {part} to be unused, got one that another process is writing. That "
            f"process is fetching the same file. Wait until it has finished, then run the command "
            f"again."
        )
    return file


def _open_plain(path: str, flags: int) -> int:
    """Open a file without following a link, and without waiting for the other end of a pipe."""
    more = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    handle = os.open(path, flags | more, 0o666)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "not a plain file")
    return handle


def _is_still(file: FileIO, part: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), part.stat())
    except FileNotFoundError:
        return False
