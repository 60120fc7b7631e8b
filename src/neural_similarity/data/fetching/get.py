"""Get a data set into the data directory: fetch, verify, unpack; existing files stay."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from ... import _check
from ..._io import settle
from ...errors import FetchError
from ..registry import dataset_info
from .archives import unpack
from .download import digest, fetch_file, fetched_archive, remove_whole_part
from .sources import SOURCES, RemoteFile, Source

__all__ = ["Callback", "Got", "find", "get_data", "verify"]

Callback = Callable[[str, int, int | None], None]
"""Called with a file's name, the number of bytes received and, if known, the total."""

State = Literal["made", "fetched", "verified", "there", "other"]


@dataclass(frozen=True)
class Got:
    """Where a data set is, and what was done.

    ``state`` is ``"made"`` (nothing to fetch), ``"fetched"``, or, for what was there already,
    ``"verified"`` (as published), ``"other"`` (not as published, and left alone) or ``"there"``
    (nothing is published to compare with).
    """

    folder: Path
    state: State


def get_data(
    name: str,
    data_dir: str | os.PathLike[str],
    *,
    force: bool = False,
    callback: Callback | None = None,
) -> Got:
    """Fetch what a data set lacks.

    Args:
        name: one of ``SOURCES``.
        data_dir: the folder of data sets; created if necessary.
        force: fetch and replace existing files that cannot be verified.
        callback: see :data:`Callback`.
    """
    _check.known_name("data get", "name", name, SOURCES)
    source, root = SOURCES[name], Path(data_dir)
    if not source.names:
        return Got(root, "made")
    folder = find(source, root)
    if folder is not None:
        state = verify(source, folder)
        if state == "verified" or not (force and source.files):
            if state != "other":
                _remove_leftovers(source, root)
            return Got(folder, state)
    if not source.files:
        info = dataset_info(name)
        raise FetchError(
            f"data get: expected a data set that can be fetched, got {name!r}. {info.by_hand} "
            f"Arrange the files below {root} like this: {info.layout}."
        )
    # Everything is checked before anything is fetched, so that errors come early.
    files = [file for file in source.files if force or not _is_done(source, file, root)]
    for file in files:
        _fetch(file, root / file.place, force, callback)
    return Got(root / source.folders[0], "fetched")


def find(source: Source, data_dir: Path) -> Path | None:
    """The folder that holds all of a data set, if there is one; nothing is read."""
    for folder in source.folders:
        if all(_exists(data_dir / folder / name, md5) for name, md5 in source.names.items()):
            return data_dir / folder
    return None


def verify(source: Source, folder: Path) -> State:
    """Compare the files in a folder with the published checksums."""
    checksums = {folder / name: checksum for name, checksum in source.names.items() if checksum}
    if not checksums or not all(path.exists() for path in checksums):
        return "there"
    right = all(digest(path, checksum) == checksum for path, checksum in checksums.items())
    return "verified" if right else "other"


def _exists(path: Path, checksum: str) -> bool:
    """Whether the file or folder is there; Fashion-MNIST's files may have been unpacked by hand."""
    if not checksum:
        return path.exists()
    return path.is_file() or (path.suffix == ".gz" and path.with_suffix("").is_file())


def _is_done(source: Source, file: RemoteFile, root: Path) -> bool:
    """Whether an archive has been unpacked before; for a single file, fetching checks that."""
    place = root / file.place
    if not file.archive or not place.exists():
        return False
    if file.place == source.folders[0]:
        missing_name = next(name for name in source.names if not (place / name).exists())
        raise FetchError(
            f"data get: expected {place} with {', '.join(source.names)}, got one without "
            f"{missing_name}. It is left as it was. Move it away, or use --force."
        )
    return True


def _remove_leftovers(source: Source, root: Path) -> None:
    """Remove what is left of a process that was killed after everything was in place."""
    for file in (file for file in source.files if file.archive):
        place = root / file.place
        with suppress(OSError, FetchError):  # it cannot be written, or another process is fetching
            settle(place.parent)
            remove_whole_part(place.with_name(file.name), file.checksum)


def _fetch(file: RemoteFile, place: Path, force: bool, callback: Callback | None) -> None:
    progress = partial(callback, file.name) if callback else None
    if not file.archive:
        fetch_file(file.url, place, file.checksum, size=file.size, replace=force, progress=progress)
        return
    target = place.with_name(file.name)
    with fetched_archive(
        file.url, target, file.checksum, size=file.size, replace=force, progress=progress
    ) as archive:
        unpack(archive, place, replace=force)
