"""System locks on files and folders: they end with their process, however that ends."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

try:
    import fcntl
except ImportError:  # no such locks: only one process at a time may write to a folder
    fcntl = None  # type: ignore[assignment]

__all__ = ["AVAILABLE", "abandoned", "close", "is_held", "locked", "open_locked", "try_lock"]

AVAILABLE = fcntl is not None
_HANDLES: set[int] = set()  # handles that this process keeps open for their locks


def try_lock(handle: int, shared: bool = False) -> bool:
    """Lock an open file or folder; False if another process holds the lock.

    The operating system releases the lock when the process ends, however that ends. Some network
    file systems have no such locks; there, every process gets one.

    Args:
        handle: the file descriptor of the open file or folder.
        shared: take a shared lock, which several processes can hold.
    """
    return _lock(handle, shared) is not False


@contextmanager
def locked(path: Path, shared: bool = False) -> Iterator[bool]:
    """Whether this process holds the lock on a file or folder, until the end of the block.

    Processes that it starts meanwhile do not inherit the lock.

    Args:
        path: a folder, which must exist, or a file, which is created along with its folder.
        shared: take a shared lock, which several processes can hold.
    """
    if fcntl is None:
        yield True
        return
    if not path.is_dir():
        path.parent.mkdir(parents=True, exist_ok=True)
    handle = open_locked(path, path.is_dir(), shared)
    try:
        yield handle is not None
    finally:
        close(handle)


def open_locked(path: Path, is_folder: bool, shared: bool = False) -> int | None:
    """Open a file or folder and lock it; None if another process holds the lock."""
    while True:
        handle = _open(path, os.O_DIRECTORY if is_folder else os.O_RDWR | os.O_CREAT)
        try:
            if not try_lock(handle, shared):
                close(handle)
                return None
            if _is_still(handle, path):
                return handle
        except BaseException:
            close(handle)
            raise
        close(handle)  # between opening and locking, another process replaced it


def close(handle: int | None) -> None:
    """Close a handle from :func:`open_locked`, unless this is a child process of its owner."""
    if handle in _HANDLES:
        _HANDLES.discard(handle)
        os.close(handle)


@contextmanager
def abandoned(folder: Path) -> Iterator[bool]:
    """Whether a folder that its owner keeps locked belongs to no running process.

    False if locks cannot tell.
    """
    with _state(folder) as state:
        yield state is True


def is_held(folder: Path) -> bool:
    """Whether a running process has locked a folder, as far as locks can tell."""
    with _state(folder) as state:
        return state is False


@contextmanager
def _state(folder: Path) -> Iterator[bool | None]:
    """True if we got the lock, False if another process holds it, None if that is unknown."""
    if fcntl is None:
        yield None
        return
    try:
        handle = _open(folder, os.O_DIRECTORY)
    except OSError:  # its owner has just removed it, or it belongs to another user
        yield None
        return
    try:
        yield _lock(handle, False)
    finally:
        close(handle)


def _open(path: Path, flags: int) -> int:
    handle = os.open(path, flags)
    _HANDLES.add(handle)
    return handle


def _lock(handle: int, shared: bool) -> bool | None:
    """Lock an open file or folder; False if another process holds it, None if locks do not work."""
    if fcntl is None:
        return None
    try:
        fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a network file system without such locks
        return None
    return True


def _is_still(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False


def _forget() -> None:
    """Give up the parent's locks in a newly forked process.

    It would hold them for as long as it runs: a worker that reads images would keep the folder of
    a killed run locked.
    """
    for handle in _HANDLES:
        os.close(handle)
    _HANDLES.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
