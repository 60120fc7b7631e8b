"""The page's records besides pictures: the history of accuracy, and confirmed labels."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

from ..._io import write_file
from ..._json import Count, Share, read_json
from ...errors import FileFormatError
from .names import is_unicode

__all__ = ["Point", "Records"]

_MOST_POINTS = 400
_Kind = TypeVar("_Kind")


@dataclass(frozen=True)
class Point:
    """The accuracy at one moment of the history.

    Attributes:
        pictures: how many pictures the project had.
        classes: how many classes.
        accuracy: on new pictures, estimated by cross-validation.
        low, high: its 95 % interval.
    """

    pictures: Count
    classes: Count
    accuracy: Share
    low: Share
    high: Share


class Records:
    """The history, and the labels that the user has confirmed, in two small files.

    A label is confirmed for the content of a picture file, by its fingerprint, and for a class, by
    its name. So it holds wherever the file is in its class, follows the class when it is renamed,
    and does not apply to another class that the picture is moved to.

    A damaged file counts as an empty one: nothing in it is worth a failure.
    """

    def __init__(self, folder: Path) -> None:
        self._history_file, self._kept_file = folder / "history.json", folder / "kept.json"
        self.history: list[Point] = _read(self._history_file, list[Point]) or []
        kept = _read(self._kept_file, list[tuple[str, str]]) or []
        self._kept = {pair for pair in kept if all(map(is_unicode, pair))}

    def add_point(self, point: Point) -> None:
        """Record an accuracy, unless nothing has changed since the last one."""
        if self.history and self.history[-1] == point:
            return
        if self.history and self.history[-1].pictures == point.pictures:
            self.history.pop()  # a moved label or a better method: keep the newest
        self.history = [*self.history, point][-_MOST_POINTS:]
        content = json.dumps([asdict(one) for one in self.history])
        with suppress(OSError):  # a full disk only costs the history
            write_file(self._history_file, content.encode())

    @property
    def kept_labels(self) -> set[str]:
        """The classes that have a picture whose label was confirmed."""
        return {label for _, label in self._kept}

    def keep(self, fingerprint: str, label: str) -> None:
        """Record that a picture belongs to its class, whatever it looks like."""
        self._set_kept(self._kept | {(fingerprint, label)})

    def is_kept(self, fingerprint: str, label: str) -> bool:
        """Whether the user has confirmed that the picture belongs to this class."""
        return (fingerprint, label) in self._kept

    def rename(self, old: str, new: str) -> None:
        """Rename a class."""
        with suppress(OSError):  # with a full disk, an answered question is asked again
            self._set_kept({(key, new if label == old else label) for key, label in self._kept})

    def convert(self, fingerprint_of: Callable[[str], str | None]) -> None:
        """Read what earlier versions wrote: the path of a picture in place of its fingerprint.

        Args:
            fingerprint_of: returns the fingerprint of a file of the project; None if it is gone.
        """
        new = {(fingerprint_of(key) if "/" in key else key, label) for key, label in self._kept}
        with suppress(OSError):
            self._set_kept({(key, label) for key, label in new if key is not None})

    def _set_kept(self, kept: set[tuple[str, str]]) -> None:
        if kept != self._kept:
            self._kept = kept
            write_file(self._kept_file, json.dumps(sorted(kept)).encode())


def _read(file: Path, kind: type[_Kind]) -> _Kind | None:
    try:
        return read_json(file, kind, FileFormatError)
    except (FileFormatError, OSError):
        return None
