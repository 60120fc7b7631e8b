"""Only regular files are opened: to open a pipe or a device may never end."""

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
    """Raise an OSError unless there is a regular file: to open a pipe or a device may never end."""
    mode = (status or Path(path).stat()).st_mode
    if not stat.S_ISREG(mode):
        kind = _OTHER_KINDS.get(stat.S_IFMT(mode), "something else")
        raise OSError(errno.EINVAL, f"{kind}, not a regular file", os.fspath(path))


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """A file that is open for reading, if it is a regular one; this never waits."""
    check_regular(path)
    # Another process may put a pipe there at this moment: so do not wait, and look again.
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    file = os.fdopen(handle, "rb")
    try:
        check_regular(path, os.fstat(handle))
    except BaseException:
        file.close()
        raise
    return file


def read_regular(path: str | os.PathLike[str], most: int) -> bytes:
    """The content of a regular file of at most so many bytes."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        content = file.read(most + 1) if size <= most else b""
    if size > most or len(content) > most:
        raise OSError(errno.EFBIG, f"a file of more than {most:,} bytes", os.fspath(path))
    return content
