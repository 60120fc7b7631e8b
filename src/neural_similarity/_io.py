"""Files and folders that appear whole, swaps that cannot lose, locks, and the cache directory.

Everything is written in a scratch folder beside its target and then moved, so a reader sees the old
or the new and never half of it. A process locks its scratch folder for as long as it lives: what a
killed process left behind is recognised by the lock that nobody holds, and is cleaned up by whoever
writes there next.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

try:
    import fcntl
except ImportError:  # a system without such locks: there, one process at a time writes to a folder
    fcntl = None  # type: ignore[assignment]

__all__ = [
    "cache_directory",
    "check_regular",
    "foreign_entries",
    "locked",
    "open_regular",
    "read_regular",
    "scratch_folder",
    "settle",
    "try_lock",
    "whole_file",
    "whole_folder",
    "write_file",
]

_SCRATCH, _SWAP = ".nsl-scratch-", ".nsl-swap-"
_TAKE_OUT, _PUT_IN = "take-old-out", "put-new-in"  # which part of a swap is under way
_OTHER_KINDS = {
    stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket", stat.S_IFDIR: "a folder",
    stat.S_IFCHR: "a device", stat.S_IFBLK: "a device",
}  # fmt: skip


def cache_directory() -> Path:
    """Where things are kept that can be made again: ``$NEURAL_SIMILARITY_CACHE`` or the user's."""
    if path := os.environ.get("NEURAL_SIMILARITY_CACHE"):
        return Path(path)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "neural_similarity"


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


def try_lock(handle: int) -> bool:
    """Lock an open file or folder for this process alone; False if another process holds it.

    The lock belongs to the system: it ends with the process, however that ends. Some network file
    systems have no such locks; there every process gets it.
    """
    return _lock(handle) is not False


@contextmanager
def locked(path: Path) -> Iterator[bool]:
    """Whether this process has a file or folder to itself, until the end of the block.

    A folder must exist; a file is created, with the folder that it is in.
    """
    if fcntl is None:
        yield True
        return
    if path.is_dir():
        handle = os.open(path, os.O_RDONLY)
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        yield try_lock(handle)
    finally:
        os.close(handle)


@contextmanager
def scratch_folder(parent: Path) -> Iterator[Path]:
    """A new folder in ``parent``, removed at the end; those of dead processes are removed first."""
    _remove_leftovers(parent)
    folder, handle = _locked_folder(parent, _SCRATCH)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if handle is not None:
            os.close(handle)


@contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary path, moved to ``path`` when the block ends well.

    If it does not end well, what was at ``path`` is as it was, and nothing is left beside it.
    """
    target = Path(path)
    if not target.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "no such folder", str(target.parent))
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, "expected a file, got a folder", str(target))
    with scratch_folder(target.parent) as folder:
        file = folder / target.name
        yield file
        _flush(file)
        if target.exists():
            shutil.copymode(target, file)
        file.replace(target)


def write_file(path: str | os.PathLike[str], content: bytes) -> None:
    """Write a file that is there whole or not at all, even if the machine stops."""
    with whole_file(path) as file:
        file.write_bytes(content)


@contextmanager
def whole_folder(
    path: str | os.PathLike[str], check: Callable[[], None] = lambda: None
) -> Iterator[Path]:
    """A new folder, which stands at ``path`` when the block ends well, in place of the old one.

    Old and new are swapped in one step where the system can. Where it cannot, and where the old
    folder itself has to stay because somebody works in it or a disk is mounted there, the files are
    swapped one by one; a swap that was interrupted is finished by :func:`settle`. The old files
    are deleted only after all new ones are in place.

    Args:
        path: where the folder goes.
        check: raises if what is at ``path`` must not be replaced; called just before the swap.
    """
    target = Path(path).resolve()
    target.parent.mkdir(parents=True, exist_ok=True)
    settle(target)
    stays = target.is_dir() and _must_stay(target)
    with scratch_folder(target if stays else target.parent) as scratch:
        new = scratch / "new"
        new.mkdir()
        yield new
        check()
        if not target.is_dir():
            new.rename(target)
            return
        shutil.copymode(target, new)
        if stays or not _exchange(new, target):
            _swap_files(new, target)


def settle(folder: Path) -> None:
    """Finish or undo the swap that a killed process left in a folder; usually there is none."""
    if not folder.is_dir():
        return
    for journal in _entries(folder, _SWAP):
        with _abandoned(journal) as abandoned:
            if abandoned:
                _finish(journal, folder)
    _remove_leftovers(folder)


def foreign_entries(folder: Path) -> list[Path]:
    """What is in a folder, sorted, without what is being written or swapped there."""
    ours = (_SCRATCH, _SWAP)
    return sorted(entry for entry in folder.iterdir() if not entry.name.startswith(ours))


def _swap_files(new: Path, target: Path) -> None:
    """Swap the files of two folders; what is needed to finish lies in the target from the start."""
    journal, handle = _locked_folder(target, _SWAP)
    try:
        try:
            new.rename(journal / "new")
        except OSError as error:
            if error.errno != errno.EXDEV:  # the target is a disk of its own
                raise
            shutil.copytree(new, journal / "new")
        (journal / "old").mkdir()
        names = {
            "old": [entry.name for entry in foreign_entries(target)],
            "new": sorted(entry.name for entry in (journal / "new").iterdir()),
        }
        (journal / _TAKE_OUT).write_text(json.dumps(names), encoding="utf-8")
        _flush(journal / _TAKE_OUT)
        _flush(journal)
        _finish(journal, target)
    except OSError:
        _undo(journal, target)
        raise
    except BaseException:  # Ctrl-C and the like: half a swap is finished, not left
        _finish(journal, target)
        raise
    finally:
        if handle is not None:
            os.close(handle)


def _finish(journal: Path, target: Path) -> None:
    """Go on with a swap wherever it stopped; without a mark nothing was swapped yet."""
    if (journal / _TAKE_OUT).exists():
        for name in _names(journal / _TAKE_OUT)["old"]:
            if (target / name).exists():  # else it is out already
                (target / name).rename(journal / "old" / name)
        (journal / _TAKE_OUT).rename(journal / _PUT_IN)
    if (journal / _PUT_IN).exists():
        for entry in sorted((journal / "new").iterdir()):
            entry.rename(target / entry.name)
        (journal / _PUT_IN).unlink()
    shutil.rmtree(journal, ignore_errors=True)


def _undo(journal: Path, target: Path) -> None:
    """Bring the old files back after the disk refused a step."""
    if (journal / _PUT_IN).exists():
        for name in _names(journal / _PUT_IN)["new"]:
            if not (journal / "new" / name).exists():  # else it is not in place yet
                (target / name).rename(journal / "new" / name)
        (journal / _PUT_IN).rename(journal / _TAKE_OUT)
    if (journal / _TAKE_OUT).exists():
        for entry in sorted((journal / "old").iterdir()):
            entry.rename(target / entry.name)
        (journal / _TAKE_OUT).unlink()
    shutil.rmtree(journal, ignore_errors=True)


def _names(mark: Path) -> dict[str, list[str]]:
    """Which files a swap takes out and puts in: others are not touched."""
    names: dict[str, list[str]] = json.loads(mark.read_text(encoding="utf-8"))
    return names


def _exchange(new: Path, old: Path) -> bool:
    """Swap two folders in one step; False if this system or file system cannot."""
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    if renameat2(here, os.fsencode(new), here, os.fsencode(old), exchange) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EBUSY):  # busy: a mount point
        return False
    raise OSError(code, os.strerror(code), str(old))


def _must_stay(folder: Path) -> bool:
    """Whether a folder cannot be moved away: it is in use, a disk of its own, or in a fixed one."""
    fixed = not os.access(folder.parent, os.W_OK)
    return fixed or os.path.ismount(folder) or Path.cwd().is_relative_to(folder)


def _lock(handle: int) -> bool | None:
    """Lock an open file or folder; False if another process holds it, None if locks do not work."""
    if fcntl is None:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a network file system without such locks
        return None
    return True


def _locked_folder(parent: Path, prefix: str) -> tuple[Path, int | None]:
    """A new folder and the open handle that locks it."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        if fcntl is None:
            return folder, None
        try:
            handle = os.open(folder, os.O_RDONLY)
        except FileNotFoundError:  # another process took it for a leftover before we locked it
            continue
        if _lock(handle) is not False and folder.exists():
            return folder, handle
        os.close(handle)


@contextmanager
def _abandoned(folder: Path) -> Iterator[bool]:
    """Whether a scratch folder belongs to no running process, as far as locks can say."""
    if fcntl is None:
        yield False
        return
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:  # its owner has just removed it, or it is another user's
        yield False
        return
    try:
        yield _lock(handle) is True
    finally:
        os.close(handle)


def _remove_leftovers(parent: Path) -> None:
    """Remove the scratch folders of processes that no longer run."""
    for folder in _entries(parent, _SCRATCH):
        with _abandoned(folder) as abandoned:
            if abandoned:
                shutil.rmtree(folder, ignore_errors=True)


def _entries(folder: Path, prefix: str) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            return [Path(e.path) for e in entries if e.name.startswith(prefix) and e.is_dir()]
    except OSError:
        return []


def _flush(path: Path) -> None:
    """Bring a file or folder from the system's memory to the disk."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except PermissionError:  # folders cannot be opened on every system
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
