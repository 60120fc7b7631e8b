"""Where the files of a data set are, and what is said if they are not there."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from ..errors import DataError
from .registry import DatasetInfo, Request

__all__ = ["find_folder", "how_to_get", "missing"]


def find_folder(
    request: Request, folders: Iterable[Path], is_there: Callable[[Path], bool], what: str
) -> Path:
    """The first folder that holds what is looked for."""
    tried = list(folders)
    for folder in tried:
        if is_there(folder):
            return folder
    places = " or ".join(map(str, tried))
    raise missing(request.info, f"expected {what} in {places}, got nothing there")


def missing(info: DatasetInfo, trouble: str) -> DataError:
    """The error for files that are not there."""
    return DataError(f"{info.name}: {trouble}. {how_to_get(info)}")


def how_to_get(info: DatasetInfo) -> str:
    """What to do to have the files."""
    return info.by_hand or f"Get it with nsl data get {info.name}, or pass --data-dir."
