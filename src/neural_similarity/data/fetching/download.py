"""Download one file: resumed where it stopped, verified, moved into place whole or not at all.

What has arrived so far is in ``<target>.part``. A checksum decides at the end, so any server will
do: one that cannot resume, one that drops the connection, one that answers with its own page.
"""

from __future__ import annotations

import hashlib
import os
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.message import Message
from http.client import HTTPException
from io import FileIO
from pathlib import Path
from typing import Any, NoReturn
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from ...errors import FetchError
from ._disk import append, exclusive, length, writing

__all__ = ["Progress", "digest", "fetch_file", "fetched_archive", "remove_whole_part"]

Progress = Callable[[int, int | None], None]
"""Called with the number of bytes received and, if known, the total."""

PAUSES = (1.0, 2.0, 4.0)
"""Seconds to wait before each retry; as many attempts in a row may make no progress."""

TIMEOUT = 30.0
_CHUNK = 1 << 18
_FINAL = (ConnectionRefusedError, socket.gaierror, ssl.SSLCertVerificationError)
_TRY_AGAIN = (408, 425, 429)


def fetch_file(
    url: str,
    target: str | os.PathLike[str],
    checksum: str,
    *,
    size: int | None = None,
    replace: bool = False,
    progress: Progress | None = None,
) -> bool:
    """Download ``url`` to ``target``; return whether anything had to be downloaded.

    Args:
        url: ``https``, ``http`` or ``file``.
        target: a file; its folder is created if necessary.
        checksum: ``"md5:<hex>"`` or ``"sha256:<hex>"``.
        size: in bytes, if known; a file of another size is then refused before it is read.
        replace: replace an existing file with other content; otherwise that is an error.
        progress: see :data:`Progress`.
    """
    target = Path(target)
    with _whole_part(url, target, checksum, size, replace, progress) as file:
        if file is None:
            return False
        with writing("fetch", target):
            os.fsync(file.fileno())
            _part_of(target).replace(target)
    return True


@contextmanager
def fetched_archive(
    url: str,
    target: str | os.PathLike[str],
    checksum: str,
    *,
    size: int | None = None,
    replace: bool = False,
    progress: Progress | None = None,
) -> Iterator[Path]:
    """A file with the content of ``url``, to unpack within the block; afterwards it is removed.

    If the block fails or the process is killed, the part stays and is resumed next time. No other
    process can use it meanwhile. A file that somebody put at ``target`` is used, and stays.

    Args:
        url: ``https``, ``http`` or ``file``.
        target: where somebody may have put the file.
        checksum: ``"md5:<hex>"`` or ``"sha256:<hex>"``.
        size: in bytes, if known; a file of another size is then refused before it is read.
        replace: ignore a file at ``target`` with other content; otherwise that is an error.
        progress: see :data:`Progress`.
    """
    target = Path(target)
    with _whole_part(url, target, checksum, size, replace, progress) as file:
        if file is None:
            yield target
            return
        yield _part_of(target)
        _part_of(target).unlink()


def remove_whole_part(target: Path, checksum: str) -> None:
    """Remove the part that :func:`fetched_archive` left of a file, if it is complete."""
    part = _part_of(target)
    if part.is_file():
        with exclusive(part):
            if digest(part, checksum) == checksum:
                part.unlink()


def digest(path: Path, checksum: str) -> str:
    """The checksum of a file, of the kind and in the form of ``checksum``."""
    kind = checksum.partition(":")[0]
    with path.open("rb") as file:
        file_hash = hashlib.file_digest(file, lambda: hashlib.new(kind, usedforsecurity=False))
    return f"{kind}:{file_hash.hexdigest()}"


@contextmanager
def _whole_part(
    url: str,
    target: Path,
    checksum: str,
    size: int | None,
    replace: bool,
    progress: Progress | None,
) -> Iterator[FileIO | None]:
    """The complete part, only for this process; None if ``target`` exists."""
    if _is_there(url, target, checksum, replace):
        yield None
        return
    with exclusive(_part_of(target)) as file:
        # The process that held the lock before may have finished.
        if _is_there(url, target, checksum, replace):
            yield None
            return
        _complete(url, target, file, checksum, size, progress)
        yield file


def _part_of(target: Path) -> Path:
    return target.with_name(target.name + ".part")


def _complete(
    url: str,
    target: Path,
    file: FileIO,
    checksum: str,
    size: int | None,
    progress: Progress | None,
) -> None:
    """Download what a part lacks, and verify it."""
    part, here = _part_of(target), length(file)
    if here and size in (None, here) and digest(part, checksum) == checksum:
        return  # complete already: the process was killed after that
    _transfer(url, target, file, size, progress)
    got = digest(part, checksum)
    if got != checksum and here:
        # The beginning may come from an older file than the rest: start again.
        file.truncate(0)
        _transfer(url, target, file, size, progress)
        got = digest(part, checksum)
    if got != checksum:
        _refuse(url, target, part, checksum, got)


class _DroppedError(Exception):
    """The connection ended early; another attempt may get the rest."""


def _is_there(url: str, target: Path, checksum: str, replace: bool) -> bool:
    if urlsplit(url).scheme not in ("https", "http", "file"):
        raise FetchError(
            f"fetch: expected an address that begins with https, http or file, got {url!r}."
        )
    if not target.exists():
        return False
    got = digest(target, checksum) if target.is_file() else "a folder"
    if got == checksum:
        return True
    if replace and target.is_file():
        return False
    raise FetchError(
        f"fetch: expected {target} with {checksum}, got {got}. It is not the file at {url}; it is "
        f"left as it was. Move it away, or fetch with --force."
    )


def _transfer(
    url: str, target: Path, file: FileIO, size: int | None, progress: Progress | None
) -> None:
    """Try until the file is complete or several attempts in a row make no progress."""
    most, failures = length(file), 0
    while True:
        try:
            return _receive(url, target, file, size, progress)
        except _DroppedError as error:
            here = length(file)
            if here > most:
                most, failures = here, 0
            if failures == len(PAUSES):
                hint = f" The part received so far is in {target}.part." if here else ""
                raise FetchError(
                    f"fetch: expected all of {url}, got {here:,} bytes and then: {error}.{hint} "
                    f"Run the command again to continue, or {_by_hand(target)}."
                ) from error
            time.sleep(PAUSES[failures])
            failures += 1


def _receive(
    url: str, target: Path, file: FileIO, size: int | None, progress: Progress | None
) -> None:
    """One attempt: request what is missing and append it."""
    offset = length(file)
    if offset and offset == size:
        return
    headers = {"User-Agent": "neural-similarity", "Accept-Encoding": "identity"}
    if offset:
        headers["Range"] = f"bytes={offset}-"
    with _response(Request(url, headers=headers), target, file) as response:
        anew = offset > 0 and not _continues(response, offset)
        offset = 0 if anew else offset
        total = _total(response.headers, offset)
        _check_size(url, target, response.headers, total, size)
        if anew:  # only now: a page of a proxy must not cost what was received before
            _check_kind(url, target, response)
            file.truncate(0)
            if response.status == 206:
                raise _DroppedError("the server sent another part than asked for")
        total = size if total is None else total
        while chunk := _read(response):
            if size is not None and offset + len(chunk) > size:
                file.truncate(0)
                _refuse_size(url, target, response.headers, None, size)
            with writing("fetch", target):
                append(file, chunk)
            offset += len(chunk)
            if progress:
                progress(offset, total)
    if total is not None and offset < total:
        raise _DroppedError(f"the connection ended {total - offset:,} bytes early")


@contextmanager
def _response(request: Request, target: Path, file: FileIO) -> Iterator[Any]:
    """The server's response; a permanent failure is an error immediately."""
    try:
        response = urlopen(request, timeout=TIMEOUT)
    except HTTPError as error:
        error.close()
        if error.code == 416:  # what we have does not fit what the server has
            file.truncate(0)
        if error.code in (416, *_TRY_AGAIN) or error.code >= 500:
            raise _DroppedError(f"HTTP {error.code} ({error.reason})") from error
        raise FetchError(
            f"fetch: expected a file at {request.full_url}, got HTTP {error.code} "
            f"({error.reason}). It may have moved. Look for it in a browser and {_by_hand(target)}."
        ) from error
    except URLError as error:
        if isinstance(error.reason, _FINAL) or request.type == "file":
            reason = getattr(error.reason, "strerror", None) or error.reason
            raise FetchError(
                f"fetch: expected an answer from {request.full_url}, got: {reason}. Check the "
                f"network connection, and the proxy if you need one (https_proxy). Run the command "
                f"again later, or {_by_hand(target)}."
            ) from error
        raise _DroppedError(str(error.reason)) from error
    except (OSError, HTTPException) as error:
        raise _DroppedError(str(error) or type(error).__name__) from error
    except ValueError as error:  # of an address that the server redirects to
        raise FetchError(
            f"fetch: expected an answer from {request.full_url}, got an address that cannot be "
            f"read: {error}. {_by_hand(target).capitalize()}."
        ) from error
    with response:
        yield response


def _read(response: Any) -> bytes:
    try:
        chunk: bytes = response.read(_CHUNK)
    except (OSError, HTTPException) as error:
        raise _DroppedError(str(error) or type(error).__name__) from error
    return chunk


def _continues(response: Any, offset: int) -> bool:
    """Whether the response begins where we stopped; a server may also send everything again."""
    begins: str = response.headers.get("Content-Range", "")
    return response.status == 206 and begins.startswith(f"bytes {offset}-")


def _total(headers: Message, offset: int) -> int | None:
    rest = str(headers.get("Content-Length", ""))
    return offset + int(rest) if rest.isdecimal() else None


def _check_size(
    url: str, target: Path, headers: Message, total: int | None, size: int | None
) -> None:
    if size is not None and total is not None and total != size:
        _refuse_size(url, target, headers, total, size)


def _check_kind(url: str, target: Path, response: Any) -> None:
    """Raise if a server sends a page in place of the rest of a file."""
    kind = response.headers.get_content_type()
    if response.status not in (None, 200, 206) or kind == "text/html":
        raise FetchError(
            f"fetch: expected the rest of {url}, got HTTP {response.status} ({kind}). A proxy "
            f"probably sent a page of its own. Open the address in a browser and "
            f"{_by_hand(target)}."
        )


def _refuse_size(
    url: str, target: Path, headers: Message, total: int | None, size: int
) -> NoReturn:
    got = "more" if total is None else f"{total:,}"
    raise FetchError(
        f"fetch: expected {size:,} bytes at {url}, got {got} ({headers.get_content_type()}). "
        f"The server sent another file, or a proxy sent a page of its own. Open the address in a "
        f"browser and {_by_hand(target)}."
    )


def _refuse(url: str, target: Path, part: Path, checksum: str, got: str) -> NoReturn:
    with part.open("rb") as file:
        start = file.read(512).lstrip().lower()
    page = ", a web page" if start.startswith((b"<!doctype html", b"<html")) else ""
    size = part.stat().st_size
    part.unlink()
    raise FetchError(
        f"fetch: expected {url} with {checksum}, got {got} ({size:,} bytes{page}). The download "
        f"was removed. Run the command again; if that does not help, {_by_hand(target)}."
    )


def _by_hand(target: Path) -> str:
    return f"download it by hand to {target} and run the command again"
