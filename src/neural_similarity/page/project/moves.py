"""Moves of pictures between classes that can be undone, for as long as the server runs."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from time import time_ns

from ..refused import RefusedError
from .listing import Listing, Picture
from .names import FreePaths, identifier

__all__ = ["Move", "Moves"]

_MOST_MOVES = 100


@dataclass(frozen=True)
class Move:
    """One picture that was moved.

    Attributes:
        home: its original file, relative to the project.
        picture: the picture as it is now.
    """

    home: str
    picture: Picture


class Moves:
    """The last moves, each under a name.

    Args:
        project: the folder of the classes.
    """

    def __init__(self, project: Path) -> None:
        self.project = project
        self._moves: dict[str, list[Move]] = {}

    def add(self, moves: list[Move]) -> str:
        """Record a move; returns its name, which is unique."""
        name = str(time_ns())
        self._moves[name] = moves
        for old in list(self._moves)[:-_MOST_MOVES]:
            del self._moves[old]
        return name

    def possible(self, listing: Listing) -> list[str]:
        """The names of the moves that can be undone, at least in part."""
        return [
            name
            for name, moves in list(self._moves.items())  # other threads move pictures
            if any(_is_there(move.picture, listing) for move in moves)
        ]

    def labels_back(self, name: str) -> set[str]:
        """The classes that pictures would return to."""
        return {_label(move.home) for move in self._moves.get(name, [])}

    def undo(self, name: str, listing: Listing) -> None:
        """Move pictures back, under new names where the old ones are taken.

        Pictures that were moved again, changed or deleted since stay as they are.
        """
        moves = self._moves.get(name, [])
        there = [move for move in moves if _is_there(move.picture, listing)]
        if not there:
            raise RefusedError("These pictures have since been moved or changed.", 409)
        free_path = FreePaths()
        for move in there:
            home = self.project / move.home
            home.parent.mkdir(parents=True, exist_ok=True)
            back = free_path(home.parent, home.stem, home.suffix)
            with suppress(FileNotFoundError):  # someone else deleted it
                (self.project / move.picture.file).rename(back)
        self._moves.pop(name, None)  # only now: after an error, the rest can still be undone

    def rename(self, old: str, new: str) -> None:
        """Rename a class, in both directions of a move."""
        for name, moves in self._moves.items():
            self._moves[name] = [_renamed(move, old, new) for move in moves]


def _renamed(move: Move, old: str, new: str) -> Move:
    home, picture = move.home, move.picture
    if _label(home) == old:
        home = _in_class(home, new)
    if picture.label == old:
        picture = replace(picture, label=new, file=_in_class(picture.file, new))
    return Move(home, picture)


def _is_there(picture: Picture, listing: Listing) -> bool:
    now = listing.by_id.get(identifier(picture.file))
    return now is not None and now.version == picture.version


def _label(file: str) -> str:
    return PurePosixPath(file).parts[0]


def _in_class(file: str, label: str) -> str:
    """The same file in a class of another name."""
    return PurePosixPath(label, *PurePosixPath(file).parts[1:]).as_posix()
