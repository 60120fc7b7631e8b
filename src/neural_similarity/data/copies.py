"""Files with the same content, which must not be on both sides of a division."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from ._cache import cached_json, key_of

__all__ = ["identical_files"]


def identical_files(root: Path, files: Sequence[str]) -> list[list[str]]:
    """Groups of files with the same content, by name; only files of equal size are read.

    The result is cached until the name, the size or the modification time of a file changes.
    """
    by_size: dict[int, list[str]] = {}
    stats = [(root / name).stat() for name in files]
    for name, stat in zip(files, stats, strict=True):
        by_size.setdefault(stat.st_size, []).append(name)
    candidates = [names for names in by_size.values() if len(names) > 1]
    if not candidates:
        return []

    def compare() -> list[list[str]]:
        groups: dict[bytes, list[str]] = {}
        for name in (name for names in candidates for name in names):
            with (root / name).open("rb") as file:
                groups.setdefault(hashlib.file_digest(file, "sha256").digest(), []).append(name)
        return [names for names in groups.values() if len(names) > 1]

    known = [(n, s.st_size, s.st_mtime_ns) for n, s in zip(files, stats, strict=True)]
    return cached_json("copies", key_of((str(root.resolve()), known)), compare)
