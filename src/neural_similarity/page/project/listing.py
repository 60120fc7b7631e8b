"""What is in a project: its classes and their pictures, as they are on disk now."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath

from ...data.folders import files_of_class
from ...data.formats import EXTENSIONS
from ..refused import RefusedError
from .names import identifier, is_unicode

__all__ = ["MOST_CLASSES", "MOST_PICTURES", "Listing", "Picture", "read_listing"]

MOST_CLASSES, MOST_PICTURES = 200, 10_000
"""More than that means the wrong folder, or calls for another tool."""


@dataclass(frozen=True)
class Picture:
    """A picture of a project.

    Attributes:
        label: the name of its class.
        file: its file, relative to the project, with ``/``.
        size, time: of the file: bytes, and the time of its last change in nanoseconds.
        inode: the number of the file on its disk, which it keeps when it is moved. Files from one
            zip may have the same size and time.
    """

    label: str
    file: str
    size: int
    time: int
    inode: int

    @cached_property
    def id(self) -> str:
        """Identifies the picture as long as it stays in place."""
        return identifier(self.file)

    @cached_property
    def version(self) -> str:
        """Identifies the picture as long as its place and content stay the same."""
        return identifier(self.file, f"{self.size} {self.time} {self.inode}")

    @property
    def name(self) -> str:
        return PurePosixPath(self.file).name


@dataclass(frozen=True)
class Listing:
    """The classes and pictures of a project at one moment.

    Attributes:
        revision: grows with every change.
        labels: the names of the classes, sorted; a class may have no picture.
        pictures: in the order of their classes and files.
        loose: names of picture files in the project folder itself, outside any class.
    """

    revision: int
    labels: tuple[str, ...]
    pictures: tuple[Picture, ...]
    loose: tuple[str, ...] = ()

    @cached_property
    def by_id(self) -> dict[str, Picture]:
        return {picture.id: picture for picture in self.pictures}

    @cached_property
    def by_label(self) -> dict[str, list[Picture]]:
        pictures: dict[str, list[Picture]] = {label: [] for label in self.labels}
        for picture in self.pictures:
            pictures[picture.label].append(picture)
        return pictures

    @cached_property
    def label_ids(self) -> dict[str, str]:
        return {identifier(label): label for label in self.labels}

    def label(self, id: str) -> str:
        """The class with this identifier."""
        if id not in self.label_ids:
            raise RefusedError("This class no longer exists.", 404)
        return self.label_ids[id]

    def picture(self, id: str) -> Picture:
        """The picture with this identifier."""
        if id not in self.by_id:
            raise RefusedError("This picture no longer exists.", 404)
        return self.by_id[id]

    def of(self, label: str) -> list[Picture]:
        """The pictures of a class."""
        return self.by_label[label]


def read_listing(folder: Path, revision: int) -> Listing:
    """Read the folder; the same folders count as classes as in ``nsl adapt``."""
    with os.scandir(folder) as entries:
        visible = [entry for entry in entries if not entry.name.startswith(".")]
    labels = sorted(entry.name for entry in visible if entry.is_dir())
    if len(labels) > MOST_CLASSES:
        raise RefusedError(
            f"{folder}: expected at most {MOST_CLASSES} folders, one for each class, got "
            f"{len(labels)}. Choose the folder that has your classes."
        )
    pictures: list[Picture] = []
    for label in labels:
        if not is_unicode(label):
            raise RefusedError(
                f"{folder}: expected names in UTF-8, got {label!r}. Rename the folder."
            )
        pictures += pictures_in(folder, label, files_of_class(folder, label))
        if len(pictures) > MOST_PICTURES:
            raise RefusedError(
                f"{folder}: expected at most {MOST_PICTURES:,} pictures, got more. Choose the "
                f"folder that has your classes."
            )
    return Listing(revision, tuple(labels), tuple(pictures), _loose(visible))


def _loose(entries: list[os.DirEntry[str]]) -> tuple[str, ...]:
    return tuple(
        sorted(
            entry.name
            for entry in entries
            if entry.name.lower().endswith(EXTENSIONS)
            and is_unicode(entry.name)
            and entry.is_file()
        )
    )


def pictures_in(folder: Path, label: str, files: Iterable[str]) -> list[Picture]:
    """The files that are pictures by their suffix; broken links are left out."""
    pictures = []
    for file in files:
        if file.lower().endswith(EXTENSIONS) and is_unicode(file):
            try:
                status = (folder / file).stat()
            except OSError:
                continue
            if stat.S_ISREG(status.st_mode):  # reading from a pipe would never end
                size, time = status.st_size, status.st_mtime_ns
                pictures.append(Picture(label, file, size, time, status.st_ino))
    return pictures
