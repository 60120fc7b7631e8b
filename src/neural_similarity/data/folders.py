"""Images in folders, one folder a class: what ImageNet and people's own sets are read with."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path

import torch

from ..errors import DataError
from ._cache import cached_json, key_of
from .image_sets import FolderSet, Skipped
from .images import EXTENSIONS, decode_error, in_threads
from .locate import missing
from .registry import DatasetInfo, Request

__all__ = ["class_folders", "read_folder", "read_split"]

_LOGGER = logging.getLogger("neural_similarity")
_NAMED = 5


def read_folder(
    info: DatasetInfo, folder: Path, classes: Sequence[str], side: int, *, strict: bool = False
) -> FolderSet:
    """The images below ``folder/CLASS`` for every class, without those that cannot be decoded.

    Every file is decoded once, to find those that are damaged before training meets them; the
    result is kept until a name, a size or a time of change differs. Damaged ones are tried anew
    every time: they may only have been out of reach.

    Args:
        info: which set this is.
        folder: a folder with a folder a class.
        classes: the names of the classes, in the order of their numbers.
        side: side of the square that images are brought to.
        strict: end with an error if a file cannot be decoded.
    """
    files = [(file, n) for n, name in enumerate(classes) for file in _files(folder, name)]
    listed = [(file, n) for file, n in files if file.lower().endswith(EXTENSIONS)]
    _tell_others(info, [file for file, _ in files if not file.lower().endswith(EXTENSIONS)])
    if not listed:
        raise missing(info, f"expected images in {folder}/CLASS/, got none")
    names = [name for name, _ in listed]
    known = [_size_and_time(folder / name) for name in names]
    sizes = [(name, size) for name, (size, _) in zip(names, known, strict=True)]
    times = [time for _, time in known]

    checked = False

    def check(some: Sequence[str] = names) -> list[list[str]]:
        nonlocal checked
        checked = True
        reasons = in_threads(decode_error, [folder / name for name in some], f"checking {folder}")
        return [[name, why] for name, why in zip(some, reasons, strict=True) if why is not None]

    kept_so = cached_json("checked-images", key_of((str(folder.resolve()), sizes, times)), check)
    broken = dict(kept_so if checked else check([name for name, _ in kept_so]))
    skipped = tuple(Skipped(folder / name, why) for name, why in broken.items())
    if skipped:
        _report(info, skipped, strict)
    kept = [(name, number) for name, number in listed if name not in broken]
    return FolderSet(
        name=info.name,
        root=folder,
        files=tuple(name for name, _ in kept),
        labels=torch.tensor([n for _, n in kept], dtype=torch.int64),
        classes=tuple(classes),
        image_size=(side, side),
        fingerprint=key_of(sizes)[:12],
        skipped=skipped,
    )


def read_split(request: Request, root: Path, part: str, side: int) -> FolderSet:
    """One part of a set; the training part, where there is one, says which classes there are."""
    info, own = request.info, class_folders(request.info, root / part)
    classes = class_folders(info, root / "train") if (root / "train").is_dir() else own
    strangers = sorted(set(own) - set(classes))
    if strangers:
        raise DataError(
            f"{info.name}: expected the classes of {root / 'train'} in {root / part}, got also "
            f"{', '.join(strangers[:_NAMED])}. A class that was not learned cannot be tested."
        )
    return read_folder(info, root / part, classes, side, strict=request.strict)


def class_folders(info: DatasetInfo, folder: Path) -> tuple[str, ...]:
    with os.scandir(folder) as entries:
        names = sorted(e.name for e in entries if e.is_dir() and not e.name.startswith("."))
    if not names:
        raise missing(info, f"expected a folder a class in {folder}, got none")
    return tuple(names)


def _files(folder: Path, class_name: str) -> list[str]:
    """Names of a class's files at any depth, sorted; hidden ones are other programs' business."""
    found, seen = [], set[str]()
    for place, folders, names in os.walk(folder / class_name, followlinks=True):
        real = os.path.realpath(place)
        if real in seen or Path(os.path.realpath(folder)).is_relative_to(real):  # a link back
            folders.clear()
            continue
        seen.add(real)
        folders[:] = [name for name in folders if not name.startswith(".")]
        below = Path(place).relative_to(folder).as_posix()
        found += [f"{below}/{name}" for name in names if not name.startswith(".")]
    return sorted(found)


def _size_and_time(file: Path) -> tuple[int, int]:
    """Of a link that leads nowhere, none: decoding says what is wrong with it."""
    try:
        stat = file.stat()
    except OSError:
        return -1, -1
    return stat.st_size, stat.st_mtime_ns


def _tell_others(info: DatasetInfo, names: list[str]) -> None:
    """Files that are no images by their names: a mistake, or a note between the pictures."""
    if names:
        _LOGGER.warning(
            "neural_similarity: %s: %d file(s) passed over, whose names end as no image's: %s",
            info.name, len(names), _some(names),
        )  # fmt: skip


def _some(names: Sequence[str]) -> str:
    more = f"; and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return "; ".join(names[:_NAMED]) + more


def _report(info: DatasetInfo, skipped: tuple[Skipped, ...], strict: bool) -> None:
    named = _some([f"{bad.path} ({bad.reason})" for bad in skipped])
    if strict:
        raise DataError(
            f"{info.name}: expected every file to be an image that can be decoded, got "
            f"{len(skipped)} that cannot: {named}. Remove them, or leave out --strict to "
            f"skip them."
        )
    _LOGGER.warning("neural_similarity: %s: %d file(s) skipped: %s", info.name, len(skipped), named)
