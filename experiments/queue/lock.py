"""A lock on a file, so that several processes can share one queue."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

try:
    import fcntl
except ImportError:  # no such locks on this system: there, run one process a queue
    fcntl = None  # type: ignore[assignment]

__all__ = ["try_lock"]


@contextmanager
def try_lock(file: Path) -> Iterator[bool]:
    """Whether this process has the lock, until the block ends; the system frees it if it dies."""
    file.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(file, os.O_RDWR | os.O_CREAT)
    try:
        yield _acquire(handle)
    finally:
        os.close(handle)


def _acquire(handle: int) -> bool:
    if fcntl is not None:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True
