"""Swap two folders: in one step where the system can, otherwise file by file with a journal.

The journal is a folder in the target. It holds the new files, then the old ones, and a mark that
shows how far the swap has got, so that the next process that locks the target can finish it. The
caller of every function here must hold the lock on the target. On disk::

    .nsl-swap-x/new            files to put in
    .nsl-swap-x/old            files taken out
    .nsl-swap-x/take-old-out   the mark: first the old files are taken out ...
    .nsl-swap-x/put-new-in     ... then the new ones are put in; without a mark nothing is swapped
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import shutil
import tempfile
from pathlib import Path

from .regular import read_regular
from .scratch import JOURNAL, entries, flush, foreign_entries

__all__ = ["exchange", "finish_swaps", "swap_files"]

_TAKE_OUT, _PUT_IN = "take-old-out", "put-new-in"
_MOST_BYTES = 2**28  # of a mark: the names of some million files


def exchange(new: Path, old: Path) -> bool:
    """Swap two folders in one step; False if this system or file system cannot."""
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    here, swap = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    if renameat2(here, os.fsencode(new), here, os.fsencode(old), swap) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EBUSY):  # busy: a mount point
        return False
    raise OSError(code, os.strerror(code), str(old))


def swap_files(new: Path, target: Path) -> None:
    """Swap the files of two folders; all that is needed to finish is in the target beforehand."""
    journal = Path(tempfile.mkdtemp(prefix=JOURNAL, dir=target))
    try:
        _begin(journal, new, target)
        _finish(journal, target)
    except OSError:
        _undo(journal, target)
        raise
    except BaseException:  # Ctrl-C and the like: finish the swap, do not leave half of it
        _finish(journal, target)
        raise


def finish_swaps(folder: Path) -> None:
    """Finish or undo the swap that a killed process left in a folder; usually there is none."""
    for journal in entries(folder, JOURNAL):
        _finish(journal, folder)


def _begin(journal: Path, new: Path, target: Path) -> None:
    """Put all that is needed into the journal; the mark comes last, and atomically."""
    try:
        new.rename(journal / "new")
    except OSError as error:
        if error.errno != errno.EXDEV:  # the target is a mount point
            raise
        shutil.copytree(new, journal / "new")
    (journal / "old").mkdir()
    names = {
        "old": [entry.name for entry in foreign_entries(target)],
        "new": sorted(entry.name for entry in (journal / "new").iterdir()),
    }
    mark = journal / "names"
    mark.write_text(json.dumps(names), encoding="utf-8")
    flush(mark)
    mark.rename(journal / _TAKE_OUT)
    flush(journal)


def _finish(journal: Path, target: Path) -> None:
    """Continue a swap wherever it stopped; without a mark nothing was swapped yet."""
    if any(os.path.lexists(journal / mark) for mark in (_TAKE_OUT, _PUT_IN)):
        _check_folders(journal)
    if (journal / _TAKE_OUT).exists():
        for name in _names(journal / _TAKE_OUT)["old"]:
            if os.path.lexists(target / name):  # else it is already out
                (target / name).rename(journal / "old" / name)
        (journal / _TAKE_OUT).rename(journal / _PUT_IN)
    if (journal / _PUT_IN).exists():
        for entry in sorted((journal / "new").iterdir()):
            entry.rename(target / entry.name)
        (journal / _PUT_IN).unlink()
    shutil.rmtree(journal, ignore_errors=True)


def _undo(journal: Path, target: Path) -> None:
    """Put the old files back after a disk error."""
    if (journal / _PUT_IN).exists():
        for name in _names(journal / _PUT_IN)["new"]:
            if not os.path.lexists(journal / "new" / name):  # else it is not in place yet
                (target / name).rename(journal / "new" / name)
        (journal / _PUT_IN).rename(journal / _TAKE_OUT)
    if (journal / _TAKE_OUT).exists():
        for entry in sorted((journal / "old").iterdir()):
            entry.rename(target / entry.name)
        (journal / _TAKE_OUT).unlink()
    shutil.rmtree(journal, ignore_errors=True)


def _names(mark: Path) -> dict[str, list[str]]:
    """The files that a swap takes out and puts in; others are not touched.

    The folder may come from somebody else: names that lead out of it are refused.
    """
    try:
        names = json.loads(read_regular(mark, _MOST_BYTES))
    except (ValueError, RecursionError):
        raise _damaged(mark) from None
    if not isinstance(names, dict) or names.keys() != {"old", "new"}:
        raise _damaged(mark)
    for part in names.values():
        if not isinstance(part, list) or not all(map(_is_name, part)):
            raise _damaged(mark)
    return names


def _is_name(name: object) -> bool:
    """Whether this is the name of an entry of a folder, and no path."""
    return (
        isinstance(name, str)
        and name not in ("", ".", "..")
        and Path(name).name == name
        and "\0" not in name
    )


def _check_folders(journal: Path) -> None:
    for folder in (journal / "new", journal / "old"):
        if folder.is_symlink() or not folder.is_dir():
            raise _damaged(folder)


def _damaged(path: Path) -> OSError:
    return OSError(
        errno.EINVAL,
        f"expected what an interrupted replacement left, got something else. The folders in "
        f"{path.parent.name} may hold files of yours: look, then delete it",
        str(path),
    )
