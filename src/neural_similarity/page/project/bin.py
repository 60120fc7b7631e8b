"""The bin: what was deleted on the page is moved here, and can be restored until it is emptied.

On disk, in the page's own folder within the project::

    bin/<time>/entry.json   what it was: the class, how many pictures, whether the whole class
    bin/<time>/files/       the files, or the class folder, moved unchanged

The entry is written first, then the files are moved one by one: if the process is killed in
between, nothing is lost, because each file is either in its old place or here.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import time_ns

from ..._io import write_file
from ..._json import Count, read_json
from ...errors import FileFormatError
from ..refused import RefusedError
from .names import FreePaths, free_path, is_one_name, twin

__all__ = ["Bin", "Entry"]


@dataclass(frozen=True)
class Entry:
    """Something in the bin.

    Attributes:
        label: the class.
        count: number of pictures.
        whole: whether the class itself was deleted.
    """

    label: str
    count: Count
    whole: bool


class Bin:
    """The bin of a project.

    Args:
        project: the folder of the classes.
        folder: where deleted files go; on the same disk, so that moving is only renaming.
    """

    def __init__(self, project: Path, folder: Path) -> None:
        self.project, self.folder = project, folder
        folder.mkdir(parents=True, exist_ok=True)
        self._entries: dict[str, Entry] = {}
        self.refresh()

    def refresh(self) -> bool:
        """Look at the disk again; returns whether something came or went without the page.

        Known entries that are still there are not read again: nothing else changes them, and
        restoring reads from the disk anyway.
        """
        before, names = self._entries, sorted(place.name for place in self.folder.iterdir())
        entries = {name: before.get(name) or self.entry(name) for name in names}
        self._entries = {name: entry for name, entry in entries.items() if entry is not None}
        return self._entries != before

    def entries(self) -> dict[str, Entry]:
        """What is in the bin, the latest last, as of the last look or change.

        Reading a thousand small files at every request would be slow.
        """
        return dict(self._entries)

    def entry(self, name: str) -> Entry | None:
        """An entry as it is on disk now; None if it is not there, or not ours.

        A project may come from someone else, so an entry cannot name a place outside it.
        """
        return _read_entry(self.folder / name) if name.isdecimal() else None

    def put_pictures(self, label: str, files: list[str]) -> str:
        """Move pictures of a class to the bin; returns the name of the entry."""
        place = self._new_entry(Entry(label, len(files), False))
        count = 0
        try:
            for file in files:
                target = place / "files" / Path(file).relative_to(label)
                target.parent.mkdir(parents=True, exist_ok=True)
                with suppress(FileNotFoundError):  # someone else deleted it
                    (self.project / file).rename(target)
                    count += 1
        finally:
            self._close(place, Entry(label, count, False))
        return place.name

    def put_class(self, label: str, count: int) -> str:
        """Move a class to the bin; returns the name of the entry."""
        place = self._new_entry(Entry(label, count, True))
        try:
            (self.project / label).rename(place / "files" / label)
        finally:
            self._close(place, Entry(label, count, True))
        return place.name

    def restore(self, name: str) -> str:
        """Restore an entry, under new names where the old ones are taken; returns the class."""
        entry = self.entry(name)
        if entry is None:
            self._look_at(name)
            raise RefusedError("This is no longer in the bin.", 404)
        place = self.folder / name
        root, target = _root(place, entry), self.target(name, entry)
        if os.path.lexists(target) and not target.is_dir():
            raise RefusedError(f"The folder already contains something named {target.name!r}.", 409)
        if entry.whole and not os.path.lexists(target):
            root.rename(target)
        else:
            target.mkdir(exist_ok=True)
            free = FreePaths()
            for file in sorted(_files_in(root)):
                home = target / file.relative_to(root)
                home.parent.mkdir(parents=True, exist_ok=True)
                file.rename(free(home.parent, home.stem, home.suffix))
        shutil.rmtree(place, ignore_errors=True)
        self._look_at(name)
        return target.name

    def target(self, name: str, entry: Entry) -> Path:
        """The class folder that an entry would be restored to.

        It gets a new name beside one that many systems consider the same. So does a link beside
        a class of its name: only the link is restored, because its files are someone else's.
        """
        names = {path.name for path in self.project.iterdir()}
        is_twin = entry.label not in names and twin(entry.label, names) is not None
        if is_twin or _root(self.folder / name, entry).is_symlink():
            return free_path(self.project, entry.label, "")
        return self.project / entry.label

    def rename(self, old: str, new: str) -> None:
        """Rename a class: its pictures will be restored under the new name."""
        for name, entry in self.entries().items():
            if entry.label == old and not entry.whole:
                with suppress(OSError):  # then they are restored under the old name
                    _write_entry(self.folder / name, replace(entry, label=new))
                    self._look_at(name)

    def empty(self) -> None:
        """Delete the contents of the bin permanently."""
        for place in list(self.folder.iterdir()):
            if place.name.isdecimal():
                shutil.rmtree(place, ignore_errors=True)
        self._entries = {}
        self.refresh()

    def _close(self, place: Path, entry: Entry) -> None:
        """Record what was really moved; remove the entry if nothing was."""
        if not _is_filled(place, entry):
            shutil.rmtree(place, ignore_errors=True)
        elif _read_entry(place) != entry:
            with suppress(OSError):
                _write_entry(place, entry)
        self._look_at(place.name)

    def _look_at(self, name: str) -> None:
        entry = self.entry(name)
        if entry is None:
            self._entries.pop(name, None)
        else:
            self._entries[name] = entry

    def _new_entry(self, entry: Entry) -> Path:
        # Never reuse a name: a page may still offer to undo it.
        place = self.folder / str(time_ns())
        (place / "files").mkdir(parents=True)
        _write_entry(place, entry)
        return place


def _write_entry(place: Path, entry: Entry) -> None:
    write_file(place / "entry.json", json.dumps(asdict(entry)).encode())


def _read_entry(place: Path) -> Entry | None:
    """What a folder of the bin holds; None if it is empty or not ours (or links lead outside).

    It is empty if the process was killed between moving the last file out and removing the entry.
    """
    files = place / "files"
    if place.is_symlink() or files.is_symlink():
        return None
    try:
        entry = read_json(place / "entry.json", Entry, FileFormatError)
        return entry if is_one_name(entry.label) and _is_filled(place, entry) else None
    except (FileFormatError, OSError):
        return None


def _is_filled(place: Path, entry: Entry) -> bool:
    """Whether an entry holds a file; a class may have been deleted without any."""
    root = _root(place, entry)
    if entry.whole and (root.is_symlink() or not entry.count):
        return os.path.lexists(root)
    return any(_files_in(root))


def _root(place: Path, entry: Entry) -> Path:
    """What becomes the class folder, or is moved into it."""
    return place / "files" / entry.label if entry.whole else place / "files"


def _files_in(folder: Path) -> Iterator[Path]:
    """Everything that is not a folder; a link to a folder is not one."""
    return (path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())
