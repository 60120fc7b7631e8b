"""Open only regular files: opening a pipe or a device may block forever."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

__all__ = ["check_regular", "open_regular", "read_regular"]

_OTHER_KINDS = {
    stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket", stat.S_IFDIR: "a folder",
    stat.S_IFCHR: "a device", stat.S_IFBLK: "a device",
}  # fmt: skip


def check_regular(path: str | os.PathLike[str], status: os.stat_result | None = None) -> None:
    """Raise an OSError unless this is a regular file: opening anything else may block forever."""
    mode = (status or Path(path).stat()).st_mode
    if not stat.S_ISREG(mode):
        kind = _OTHER_KINDS.get(stat.S_IFMT(mode), "something else")
        raise OSError(errno.EINVAL, f"{kind}, not a regular file", os.fspath(path))


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """A regular file, opened for reading; this never blocks."""
    check_regular(path)
    # Another process may put a pipe there at this moment: do not block, and check again.
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    file = os.fdopen(handle, "rb")
    try:
        check_regular(path, os.fstat(handle))
    except BaseException:
        file.close()
        raise
    return file


def read_regular(path: str | os.PathLike[str], most: int) -> bytes:
    """The content of a regular file of at most ``most`` bytes."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        content = file.read(most + 1) if size <= most else b""
    if size > most or len(content) > most:
        raise OSError(errno.EFBIG, f"a file of more than {most:,} bytes", os.fspath(path))
    return content
