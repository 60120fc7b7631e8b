"""Find the files of a data set, and word the error if they are missing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from ..errors import DataError
from .registry import DatasetInfo, Request

__all__ = ["find_folder", "how_to_get", "missing"]


def find_folder(
    request: Request, folders: Iterable[Path], is_there: Callable[[Path], bool], what: str
) -> Path:
    """The first folder for which ``is_there`` is true."""
    candidates = list(folders)
    for folder in candidates:
        if is_there(folder):
            return folder
    places = " or ".join(map(str, candidates))
    raise missing(request.info, f"expected {what} in {places}, got nothing there")


def missing(info: DatasetInfo, problem: str) -> DataError:
    """The error for files that are missing."""
    return DataError(f"{info.name}: {problem}. {how_to_get(info)}")


def how_to_get(info: DatasetInfo) -> str:
    """How to get the files."""
    first = info.by_hand or f"Get it with nsl data get {info.name}."
    return f"{first} If it is elsewhere, pass --data-dir."
