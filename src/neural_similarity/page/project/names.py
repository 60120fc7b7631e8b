"""Names of classes and files: what people write becomes one folder or file, never a path.

For an existing class or picture, the page sends no name but an identifier, which is looked up in
the project's listing. So only a *new* name can become part of a path, and every new name passes
through here.
"""

from __future__ import annotations

import hashlib
import os
import re
import unicodedata
from collections.abc import Collection
from pathlib import Path, PurePosixPath

from ..refused import RefusedError

__all__ = [
    "FreePaths", "checked_class_name", "free_path", "identifier", "is_one_name", "is_unicode",
    "safe_stem", "twin",
]  # fmt: skip

_MOST_BYTES = 200  # folder names may have 255
_SEPARATORS = re.compile(r"[/\\]")
_CONTROL = ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")  # also marks that change the direction of writing
_NOT_ON_WINDOWS = ':*?"<>|'
_DEVICES = re.compile(  # of Windows, with any suffix
    r"(con|prn|aux|nul|conin\$|conout\$|(com|lpt)[0-9\u00b9\u00b2\u00b3])\s*(\..*)?", re.IGNORECASE
)
_JOINERS = "\u200c\u200d"
_FLAG = re.compile("\U0001f3f4[\U000e0020-\U000e007e]+\U000e007f")  # such as Scotland's
_LONGEST_STEM = 60


def checked_class_name(name: str, others: Collection[str] = ()) -> str:
    """The name of a new class, valid as a folder name on any system.

    Args:
        name: what was typed.
        others: the names that are taken. Many systems are not case-sensitive, so a name that
            differs only in case is taken too.

    >>> checked_class_name("  Blue   tit ")
    'Blue tit'
    >>> checked_class_name("../secret")
    Traceback (most recent call last):
    ...
    neural_similarity.page.refused.RefusedError: A class name cannot contain / or \\.
    """
    text = " ".join(unicodedata.normalize("NFC", name).split())
    if not text:
        raise RefusedError("Give the class a name.")
    if _SEPARATORS.search(text):
        raise RefusedError("A class name cannot contain / or \\.")
    if forbidden := next((letter for letter in text if letter in _NOT_ON_WINDOWS), None):
        raise RefusedError(
            f"A class name cannot contain {forbidden!r}. Windows allows none of "
            f"{' '.join(_NOT_ON_WINDOWS)} in folder names."
        )
    if _has_invisible(text):
        raise RefusedError("A class name cannot contain invisible characters.")
    if text.startswith("."):
        raise RefusedError("A class name cannot begin with a dot.")
    if text.endswith("."):
        raise RefusedError("A class name cannot end with a dot.")
    if _DEVICES.fullmatch(text):
        raise RefusedError(
            f"A class cannot be named {text!r}. Windows reserves this name for a device."
        )
    if len(text.encode()) > _MOST_BYTES:
        raise RefusedError(f"A class name cannot be longer than {_MOST_BYTES} bytes.")
    if (taken := twin(text, others)) is not None:
        why = "" if taken == text else " Many systems treat upper and lower case as the same."
        raise RefusedError(f"A class {taken!r} already exists.{why}", 409)
    return text


def is_one_name(name: str) -> bool:
    """Whether a name from a file is one visible folder, not a path.

    >>> [is_one_name(name) for name in ("red", "a  b.", "../red", "/red", "..", ".nsl-teach", "")]
    [True, True, False, False, False, False, False]
    """
    is_path = name in ("", ".", "..") or re.search(r"[/\\\0]|^\.", name)
    return is_unicode(name) and not is_path


def is_unicode(text: str) -> bool:
    """Whether a text can be sent to the page; names on disk and in JSON need not be valid.

    >>> [is_unicode(text) for text in ("tit", os.fsdecode(b"\\xff"))]
    [True, False]
    """
    return text.encode(errors="replace").decode() == text


def twin(name: str, others: Collection[str]) -> str | None:
    """The name among others that many systems consider the same; None if there is none.

    >>> twin("Tit", ("robin", "tit"))
    'tit'
    """
    return next((other for other in others if _key(other) == _key(name)), None)


def safe_stem(name: str) -> str:
    """The name of a user's file, without its folders, suffix and odd characters.

    >>> [safe_stem(name) for name in ("C:\\\\all\\\\Blue tit (2).JPG", "../../etc/passwd", "..")]
    ['Blue-tit-2', 'passwd', 'picture']
    >>> safe_stem("con.jpg")  # a device of Windows
    'picture-con'
    """
    last = _SEPARATORS.split(unicodedata.normalize("NFC", name))[-1]
    stem = PurePosixPath(last).stem if last.strip(".") else ""
    text = re.sub(r"[^\w]+", "-", stem).strip("-_")[:_LONGEST_STEM].strip("-_") or "picture"
    return f"picture-{text}" if _DEVICES.fullmatch(text) else text


def free_path(folder: Path, stem: str, suffix: str) -> Path:
    """A file name that is not taken in the folder: the stem, or the stem with a number.

    >>> free_path(Path(__file__).parent, "names", ".py").name
    'names-2.py'
    """
    return FreePaths()(folder, stem, suffix)


class FreePaths:
    """:func:`free_path` for many files: every folder is listed once, and no name is given twice."""

    def __init__(self) -> None:
        self._taken: dict[Path, set[str]] = {}

    def __call__(self, folder: Path, stem: str, suffix: str) -> Path:
        if folder not in self._taken:
            self._taken[folder] = {_key(entry.name) for entry in folder.iterdir()}
        taken, name, number = self._taken[folder], f"{stem}{suffix}", 2
        while _key(name) in taken or os.path.lexists(folder / name):  # others add files too
            name, number = f"{stem}-{number}{suffix}", number + 1
        taken.add(_key(name))
        return folder / name


def identifier(*parts: str) -> str:
    """A short name for something on disk, for use in addresses; it is opaque, and not a path."""
    encoded = "\0".join(parts).encode("utf-8", "surrogateescape")
    return hashlib.sha256(encoded).hexdigest()[:20]


def _key(name: str) -> str:
    """A key that is equal for names that many systems consider the same."""
    return unicodedata.normalize("NFC", name).casefold()


def _has_invisible(text: str) -> bool:
    """Whether a text has characters that are invisible, and that no script needs.

    >>> [_has_invisible(text) for text in ("\N{WOMAN}\u200d\N{MICROSCOPE}", "a\u200db", "a\u202eb")]
    [False, True, True]
    """
    rest = _FLAG.sub("", text)
    return any(
        unicodedata.category(letter) in _CONTROL
        for place, letter in enumerate(rest)
        if not (letter in _JOINERS and _joins(rest, place))
    )


def _joins(text: str, place: int) -> bool:
    """Whether a joiner has something to join, as in emoji, Persian and Indic scripts.

    Elsewhere it would allow two names that look the same.
    """
    if not 0 < place < len(text) - 1:
        return False
    before = text[place - 1]
    return (
        unicodedata.category(before) in ("So", "Sk")  # an emoji, and its skin tone
        or before == "\ufe0f"  # "as an emoji"
        or unicodedata.combining(before) == 9  # a virama
        or unicodedata.bidirectional(before) == "AL"  # an Arabic letter
    )
