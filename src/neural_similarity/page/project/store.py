"""A project: a plain folder with a folder per class, changed by the page and read by ``nsl adapt``.

Every change is on disk before its method returns. What is not a picture of a class is in the
project's folder ``.nsl-teach``: the bin, small copies of the pictures, and the page's records.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import RLock

from ..._io import settle, write_file
from ...adapt.feature_cache import image_fingerprint
from ..refused import RefusedError
from .bin import Bin
from .listing import MOST_CLASSES, MOST_PICTURES, Listing, Picture, pictures_in, read_listing
from .moves import Move, Moves
from .names import FreePaths, checked_class_name, free_path, identifier, safe_stem
from .pictures import LARGE, MOST_BYTES, SMALL, decoded, encoded, suffix_of
from .records import Records

__all__ = ["PARTS", "PRIVATE", "Project"]

PRIVATE, PARTS = ".nsl-teach", ("bin", "small", "large")
"""The page's own folder, and the folders in it."""


class Project:
    """The classes and pictures in a folder; from :func:`~neural_similarity.page.open_project`.

    Threads may share it. A picture or class is named by an identifier of :attr:`listing`. A
    :class:`~neural_similarity.page.RefusedError` explains why something cannot be done; nothing has
    changed then.

    Attributes:
        folder: the project folder.
        listing: the classes and pictures now.
        bin: what was deleted.
        moves: what was moved, and can be undone.
        records: the page's records.
        on_change: called after every change.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, private = folder, folder / PRIVATE
        self._small, self._large = private / "small", private / "large"
        for place in (self._small, self._large):
            place.mkdir(parents=True, exist_ok=True)
        self.bin, self.records = Bin(folder, private / "bin"), Records(private)
        self.on_change: Callable[[], None] = lambda: None
        self.moves, self._fingerprints = Moves(folder), dict[str, str]()
        self._lock = RLock()
        for entry in folder.iterdir():
            settle(entry)  # what a killed process left
        self.listing = read_listing(folder, 1)
        self.records.convert(self._fingerprint_of_file)

    def refresh(self) -> None:
        """Read the folder again: files may have been added or removed without the page."""
        with self._lock:
            now = read_listing(self.folder, self.listing.revision)
            is_new_bin = self.bin.refresh()
            if now != self.listing or is_new_bin:
                self._changed(now)

    def add_class(self, name: str) -> str:
        """Add a class without pictures; returns its identifier."""
        with self._lock:
            if len(self.listing.labels) >= MOST_CLASSES:
                raise RefusedError(f"A project can have at most {MOST_CLASSES} classes.")
            label = checked_class_name(name, self.listing.labels)
            self._check_free(label)
            (self.folder / label).mkdir()
            self._reread()
            return identifier(label)

    def rename_class(self, id: str, name: str) -> str:
        """Give a class another name; returns its new identifier."""
        with self._lock:
            old = self.listing.label(id)
            if name == old:
                return id
            label = checked_class_name(name, set(self.listing.labels) - {old})
            if label != old:
                if not self._is_same_folder(old, label):
                    self._check_free(label)
                (self.folder / old).rename(self.folder / label)
                for memory in (self.records, self.bin, self.moves):
                    memory.rename(old, label)
                self._reread()
            return identifier(label)

    def delete_class(self, id: str) -> str:
        """Move a class and its pictures to the bin; returns the name of the entry there."""
        with self._lock:
            label = self.listing.label(id)
            entry = self.bin.put_class(label, len(self.listing.of(label)))
            self._reread()
            return entry

    def add_picture(self, id: str, name: str, content: bytes) -> Picture:
        """Add a picture to a class, checked and stored unchanged.

        Args:
            id: the class.
            name: the name of the original file; the new one resembles it.
            content: of the file.
        """
        self.listing.label(id)
        if len(content) > MOST_BYTES:
            raise RefusedError(f"The file is larger than {MOST_BYTES // 2**20} MB.", 413)
        suffix, image = suffix_of(content, SMALL)
        small = encoded(image, SMALL)
        with self._lock:
            label = self.listing.label(id)
            if len(self.listing.pictures) >= MOST_PICTURES:
                raise RefusedError(f"A project can have at most {MOST_PICTURES:,} pictures.")
            if self._contains(label, content):
                raise RefusedError("This picture is already in the class.", 409)
            path = free_path(self.folder / label, safe_stem(name), suffix)
            write_file(path, content, overwrite=False)
            (picture,) = pictures_in(self.folder, label, [f"{label}/{path.name}"])
            with suppress(OSError):  # it can be made again
                write_file(self._small / f"{picture.version}.jpg", small)
            pictures = sorted((*self.listing.pictures, picture), key=lambda p: (p.label, p.file))
            self._changed(replace(self.listing, pictures=tuple(pictures)))
            return picture

    def move_pictures(self, ids: list[str], label_id: str) -> tuple[list[str], str]:
        """Move pictures to another class; returns their new identifiers, and a name to undo it."""
        with self._lock:
            label = self.listing.label(label_id)
            pictures = [self.listing.picture(id) for id in dict.fromkeys(ids)]
            pictures = [picture for picture in pictures if picture.label != label]
            for picture in pictures:
                self._check_link(picture, label)
            moves: list[Move] = []
            free = FreePaths()
            try:
                for picture in pictures:
                    old = self.folder / picture.file
                    new = free(self.folder / label, old.stem, old.suffix)
                    with suppress(FileNotFoundError):  # someone else deleted it
                        old.rename(new)
                        now = replace(picture, label=label, file=f"{label}/{new.name}")
                        moves.append(Move(picture.file, now))
            finally:  # after an error, what was moved can still be undone
                name = self.moves.add(moves)
                self._reread()
            return [move.picture.id for move in moves], name

    def undo_move(self, name: str) -> None:
        """Undo a move of :meth:`move_pictures`."""
        with self._lock:
            if len({*self.listing.labels, *self.moves.labels_back(name)}) > MOST_CLASSES:
                raise RefusedError(f"A project can have at most {MOST_CLASSES} classes.")
            try:
                self.moves.undo(name, self.listing)
            finally:
                self._reread()

    def delete_pictures(self, ids: list[str]) -> list[str]:
        """Move pictures to the bin; returns the names of the entries, one for each class."""
        with self._lock:
            by_label: dict[str, list[str]] = {}
            for id in dict.fromkeys(ids):
                picture = self.listing.picture(id)
                by_label.setdefault(picture.label, []).append(picture.file)
            try:
                return [self.bin.put_pictures(label, files) for label, files in by_label.items()]
            finally:
                self._reread()

    def restore(self, entry: str) -> str:
        """Restore something from the bin; returns the identifier of its class."""
        with self._lock:
            self._check_room(entry)
            label = self.bin.restore(entry)
            self._reread()
            return identifier(label)

    def empty_bin(self) -> None:
        """Delete the contents of the bin permanently."""
        with self._lock:
            self.bin.empty()
            self._remove_copies()
            self._changed(self.listing)

    def keep_label(self, id: str) -> None:
        """Record that a picture belongs to its class, whatever it looks like."""
        with self._lock:
            picture = self.listing.picture(id)
            self.records.keep(self._fingerprint(picture), picture.label)
            self._changed(self.listing)

    def is_kept(self, picture: Picture) -> bool:
        """Whether the user has confirmed that a picture belongs to its class."""
        if picture.label not in self.records.kept_labels:
            return False
        try:
            return self.records.is_kept(self._fingerprint(picture), picture.label)
        except OSError:  # it is gone
            return False

    def small_copy(self, id: str, large: bool = False) -> bytes:
        """A JPEG file of a picture, upright, with sides of at most 256 or 1024 pixels."""
        picture, side = self.listing.picture(id), LARGE if large else SMALL
        file = (self._large if large else self._small) / f"{picture.version}.jpg"
        with suppress(OSError):
            return file.read_bytes()
        content = encoded(decoded(self.folder / picture.file, side), side)
        with suppress(OSError):
            write_file(file, content)
        return content

    def _check_room(self, entry: str) -> None:
        """Raise if restoring from the bin would exceed the limits, before anything is moved."""
        back = self.bin.entry(entry)
        if back is None:
            return
        labels = {*self.listing.labels, self.bin.target(entry, back).name}
        if len(labels) > MOST_CLASSES:
            raise RefusedError(f"A project can have at most {MOST_CLASSES} classes.")
        if len(self.listing.pictures) + back.count > MOST_PICTURES:
            raise RefusedError(f"A project can have at most {MOST_PICTURES:,} pictures.")

    def _contains(self, label: str, content: bytes) -> bool:
        """Whether a class already has a picture with this content."""
        for picture in self.listing.of(label):
            if picture.size == len(content):
                with suppress(OSError):  # someone else deleted it
                    if (self.folder / picture.file).read_bytes() == content:
                        return True
        return False

    def _check_link(self, picture: Picture, label: str) -> None:
        """Raise if a picture is a link that would lead elsewhere from another class."""
        file = self.folder / picture.file
        with suppress(OSError):  # not a link
            moved = self.folder / label / file.readlink()
            if os.path.realpath(moved) != os.path.realpath(file):
                raise RefusedError(
                    f"{picture.name} is a link that works only in its own folder. Replace it by a "
                    f"copy of the picture, or move it in the project folder.",
                    409,
                )

    def _fingerprint(self, picture: Picture) -> str:
        """The fingerprint of a picture's content; computed once."""
        if picture.version not in self._fingerprints:
            file = self.folder / picture.file
            self._fingerprints[picture.version] = image_fingerprint(file)
        return self._fingerprints[picture.version]

    def _fingerprint_of_file(self, file: str) -> str | None:
        picture = self.listing.by_id.get(identifier(file))
        with suppress(OSError):
            return None if picture is None else self._fingerprint(picture)
        return None

    def _remove_copies(self) -> None:
        """Delete the copies of pictures that are no longer in the project."""
        versions = {picture.version for picture in self.listing.pictures}
        for folder in (self._small, self._large):
            for file in folder.glob("*.jpg"):
                if file.stem not in versions:
                    file.unlink(missing_ok=True)

    def _check_free(self, label: str) -> None:
        """Raise if a file, a hidden folder or a link already has this name."""
        if os.path.lexists(self.folder / label):
            raise RefusedError(f"The folder already contains something named {label!r}.", 409)

    def _is_same_folder(self, name: str, other: str) -> bool:
        """Whether two names lead to one folder, as on systems that ignore case."""
        try:
            one, two = (os.lstat(self.folder / n) for n in (name, other))
        except FileNotFoundError:
            return False
        return os.path.samestat(one, two)

    def _reread(self) -> None:
        self._changed(read_listing(self.folder, self.listing.revision))

    def _changed(self, listing: Listing) -> None:
        self.listing = replace(listing, revision=self.listing.revision + 1)
        self.on_change()
