"""Which files may be loaded as code: those that nobody but this user could have written.

A library is code. In a folder that others can write to, anybody can put one under the expected
name, with a matching checksum.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from ..._io import make_private_folder

__all__ = ["check_trusted", "trusted_folder"]

_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def trusted_folder(path: Path) -> Path:
    """The folder with links resolved, created for this user only if it does not exist.

    Raises:
        OSError: others could put files there: they own it or may write to it, or could replace one
            of the folders that it is in.
    """
    folder = path.resolve()  # the folder itself from here on: a link may change meanwhile
    make_private_folder(folder)
    check_trusted(folder)
    for parent in folder.parents:
        _check_parent(parent)
        if parent == _home():  # everything above is as safe as anything the user does
            break
    return folder


def check_trusted(path: Path) -> None:
    """Raise unless a file or folder is not a link, and only this user or root owns and writes it.

    Raises:
        OSError: somebody else could have written it.
    """
    state = path.lstat()
    if not (stat.S_ISREG(state.st_mode) or stat.S_ISDIR(state.st_mode)):
        raise _distrust(path, "it is neither a file nor a folder")
    if not _is_ours(state):
        raise _distrust(path, "it belongs to another user")
    if os.name == "posix" and state.st_mode & _OTHERS:
        raise _distrust(path, "others may write to it (chmod go-w prevents this)")


def _check_parent(parent: Path) -> None:
    """Raise if others could replace what is in this folder."""
    state = parent.stat()
    if not _is_ours(state):
        raise _distrust(parent, "it belongs to another user")
    # In a sticky folder such as /tmp, nobody can replace what belongs to somebody else.
    writers = state.st_mode & _OTHERS
    if os.name != "posix" or not writers or state.st_mode & stat.S_ISVTX:
        return
    if writers == stat.S_IWGRP and _is_private_group(state.st_gid):
        return
    raise _distrust(parent, "others may write to it")


def _is_ours(state: os.stat_result) -> bool:
    """Whether it belongs to this user, or to root, who can do anything anyway."""
    return not hasattr(os, "geteuid") or state.st_uid in (0, os.geteuid())


def _is_private_group(group: int) -> bool:
    """Whether this user is the only member: many systems give each user such a group."""
    try:
        import grp
        import pwd

        user, entry = pwd.getpwuid(os.geteuid()), grp.getgrgid(group)
    except (ImportError, KeyError):  # no such lists on this system, or not listed
        return False
    return (
        user.pw_gid == group
        and entry.gr_name == user.pw_name
        and not (set(entry.gr_mem) - {user.pw_name})
    )


def _home() -> Path | None:
    try:
        return Path.home().resolve()
    except (OSError, RuntimeError):  # a user without a home
        return None


def _distrust(path: Path, reason: str) -> OSError:
    return OSError(
        f"{path}: expected a path that only this user can write to, got one that is not safe: "
        f"{reason}. Code from there is not run. Set NEURAL_SIMILARITY_CACHE to a folder of your own"
    )
