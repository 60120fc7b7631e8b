"""Files with the same content, which must not be on both sides of a division."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from ._cache import cached_json, key_of
from .images import in_threads

__all__ = ["groups_of_copies"]

_BEGINNING = 1 << 16


def groups_of_copies(root: Path, files: Sequence[str]) -> Tensor:
    """Group numbers ``(N,)``: files with the same content have the same number.

    Of files of equal size the beginnings are compared, and of those with equal beginnings the whole
    content. The result is cached until the name, the size or the modification time of a file
    changes.
    """
    paths = [root / name for name in files]
    stats = [path.stat() for path in paths]
    known = [(n, s.st_size, s.st_mtime_ns) for n, s in zip(files, stats, strict=True)]

    def compare() -> list[list[str]]:
        sizes: dict[int, list[int]] = {}
        for row, stat in enumerate(stats):
            sizes.setdefault(stat.st_size, []).append(row)
        alike = list(sizes.values())
        for digest in (_digest_of_beginning, _digest):
            rows = [row for group in alike if len(group) > 1 for row in group]
            digests = in_threads(digest, [paths[row] for row in rows], f"comparing {root}")
            found: dict[tuple[int, str], list[int]] = {}
            for row, content in zip(rows, digests, strict=True):
                found.setdefault((stats[row].st_size, content), []).append(row)
            alike = list(found.values())
        return [[str(row) for row in group] for group in alike if len(group) > 1]

    groups = torch.arange(len(files))
    for group in cached_json("copies", key_of((str(root.resolve()), known)), compare):
        rows = [int(row) for row in group]
        groups[rows] = min(rows)
    return groups


def _digest_of_beginning(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.sha256(file.read(_BEGINNING)).hexdigest()


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
