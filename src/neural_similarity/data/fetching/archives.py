"""Unpack an archive from the network: only plain files, only below its folder, whole or not at all.

Every member is checked before the first is written. Only contents are copied, so owners, modes and
links of the archive never reach the disk.
"""

from __future__ import annotations

import gzip
import lzma
import os
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO

from ..._io import open_regular, whole_folder
from ...errors import FetchError
from ._disk import writing

__all__ = ["LIMIT", "unpack"]

LIMIT = 4 << 30
"""Bytes that an archive may unpack to; the largest data set fetched here needs 0.2 × 2³⁰."""

_DAMAGED = (
    tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, EOFError,
    NotImplementedError, UnicodeDecodeError, lzma.LZMAError,
)  # fmt: skip
_ZIP, _GZIP = b"PK", b"\x1f\x8b"


def unpack(
    archive: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    replace: bool = False,
    limit: int = LIMIT,
) -> None:
    """Unpack a tar, tar.gz or zip file that contains a folder with the name of ``target``.

    Args:
        archive: the file; its kind is read from its first bytes.
        target: the folder to create. Anything else in the archive is skipped.
        replace: replace an existing folder; otherwise that is an error.
        limit: the most bytes that the members may declare in total.
    """
    archive, target = Path(archive), Path(target)

    def check() -> None:
        if target.exists() and not replace:
            raise FetchError(
                f"unpack: expected {target} not to exist, got a folder. It is unchanged. Move it "
                f"away, or fetch with --force."
            )

    check()
    with _members(archive) as members:
        entries = list(_checked(archive, members, limit))
        if not any(path.parts[0] == target.name and len(path.parts) > 1 for path, _ in entries):
            tops = sorted({path.parts[0] for path, _ in entries})
            raise FetchError(
                f"unpack: expected {archive} to hold a folder {target.name!r}, got "
                f"{', '.join(map(repr, tops[:5])) or 'nothing'}. It is another archive. Fetch it "
                f"again, or check where it comes from."
            )
        with writing("unpack", target), whole_folder(target, check) as folder:
            for path, member in entries:
                if path.parts[0] == target.name:
                    _copy(member, folder.joinpath(*path.parts[1:]))


@dataclass(frozen=True)
class _Member:
    """A member of any archive; ``strange`` says what it is if neither a file nor a folder."""

    name: str
    size: int
    is_folder: bool
    strange: str
    open: Callable[[], IO[bytes]]


@contextmanager
def _members(archive: Path) -> Iterator[Iterator[_Member]]:
    """The members of an archive, one by one; what cannot be read is an error."""
    try:
        start = _start(archive)
        if start.startswith(_ZIP):
            with zipfile.ZipFile(archive) as zipped:
                yield _of_zip(zipped)
        else:
            with tarfile.open(archive, "r:gz" if start.startswith(_GZIP) else "r:") as tar:
                yield _of_tar(tar)
    except _DAMAGED as error:
        raise FetchError(
            f"unpack: expected {archive} to be a complete tar or zip file, got {_kind(archive)} "
            f"({str(error) or type(error).__name__}). Nothing was unpacked. Remove it and fetch "
            f"it again."
        ) from error
    except FileNotFoundError as error:
        raise FetchError(f"unpack: expected the file {archive}, got none.") from error


def _of_zip(zipped: zipfile.ZipFile) -> Iterator[_Member]:
    for info in zipped.infolist():
        mode = info.external_attr >> 16
        plain = stat.S_IFMT(mode) in (0, stat.S_IFREG, stat.S_IFDIR)
        strange = "" if plain else "a link" if stat.S_ISLNK(mode) else "a device"
        yield _Member(
            # zipfile changes `filename` on some systems; we check the original.
            info.orig_filename,
            info.file_size,
            info.is_dir(),
            "encrypted" if info.flag_bits & 1 else strange,
            partial(zipped.open, info),
        )


def _of_tar(tar: tarfile.TarFile) -> Iterator[_Member]:
    for info in tar:
        plain = info.isreg() or info.isdir()
        strange = "" if plain else "a link" if info.issym() or info.islnk() else "a device"
        yield _Member(info.name, info.size, info.isdir(), strange, partial(_tar_file, tar, info))
    # A tar ends before its gzip stream, whose end has the checksum of the whole.
    while tar.fileobj is not None and tar.fileobj.read(1 << 20):
        pass


def _tar_file(tar: tarfile.TarFile, info: tarfile.TarInfo) -> IO[bytes]:
    file = tar.extractfile(info)
    if file is None:
        raise tarfile.ReadError(f"{info.name} cannot be read")
    return file


def _checked(
    archive: Path, members: Iterator[_Member], limit: int
) -> Iterator[tuple[PurePosixPath, _Member]]:
    """Each member with its path below the folder; raise at the first that must not be written."""
    total = 0
    for member in members:
        path = PurePosixPath(member.name)
        # On some systems a backslash separates folders and a colon follows a drive letter.
        climbs = ".." in path.parts or not set("\\:\0").isdisjoint(member.name)
        wrong = member.strange or (
            "an absolute path" if path.is_absolute() else "a path that leaves the folder" * climbs
        )
        if wrong:
            raise FetchError(
                f"unpack: expected {archive} to hold only plain files and folders inside its own "
                f"folder, got {member.name!r}, which is {wrong}. Nothing was unpacked. Do not "
                f"trust this archive; remove it."
            )
        if member.size < 0:
            raise tarfile.ReadError(f"{member.name} has a negative size")
        total += member.size
        if total > limit:
            raise FetchError(
                f"unpack: expected {archive} to unpack to at most {limit:,} bytes, got more. "
                f"Nothing was unpacked. It is not the data set; remove it and fetch it again."
            )
        if path.parts:  # "." itself has none
            yield path, member


def _copy(member: _Member, place: Path) -> None:
    if member.is_folder:
        place.mkdir(parents=True, exist_ok=True)
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.open("wb") as file:
        for chunk in _content(member):
            file.write(chunk)
        if file.tell() != member.size:
            raise EOFError(f"{member.name} ends early")


def _content(member: _Member) -> Iterator[bytes]:
    """The bytes of a member; what cannot be read is the archive's fault, not the disk's."""
    try:
        with member.open() as source:
            while chunk := source.read(1 << 20):
                yield chunk
    except gzip.BadGzipFile:
        raise
    except OSError as error:
        raise tarfile.ReadError(f"{member.name}: {error}") from error


def _start(archive: Path) -> bytes:
    with open_regular(archive) as file:
        return file.read(512)


def _kind(archive: Path) -> str:
    start = _start(archive)
    if start.lstrip().lower().startswith((b"<!doctype html", b"<html")):
        return "a web page"
    if start.startswith((_ZIP, _GZIP)):
        return "a damaged one"
    return "a file of another kind"
