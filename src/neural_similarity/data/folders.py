"""Read images from one folder per class: ImageNet, and your own images."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch

from ..errors import DataError, RunError
from ._cache import cached_json, key_of
from .formats import EXTENSIONS, decoders
from .image_sets import FolderSet, Skipped
from .images import decode_error, in_threads
from .locate import missing
from .registry import DatasetInfo, Request

__all__ = [
    "SPLITS", "check_outside", "class_folders", "files_below", "files_of_class", "folder_names",
    "images_beside", "is_split", "read_folder", "read_split", "report_beside",
]  # fmt: skip

_LOGGER = logging.getLogger("neural_similarity")
_MOST_NAMES = 5

SPLITS = {"train", "val", "valid", "validation", "test"}
"""Usual names of the folders of a data set that is already split."""


def read_folder(
    info: DatasetInfo,
    folder: Path,
    classes: Sequence[str],
    side: int,
    *,
    strict: bool = False,
    fresh: bool = False,
) -> FolderSet:
    """The images below ``folder/CLASS`` for every class, without those that cannot be decoded.

    Every file is decoded once, to find damaged ones before training. The result is cached until the
    name, the size or the modification time of a file changes. Damaged files are tried again every
    time: they may only have been unreachable.

    Args:
        info: the data set.
        folder: a folder with one folder per class.
        classes: the names of the classes, in the order of their labels.
        side: images are resized to a square of this side.
        strict: raise an error if a file cannot be decoded.
        fresh: decode all files, also those that were found intact before.
    """
    files = [
        (file, n)
        for n, name in enumerate(classes)
        for file in files_of_class(folder, name, strict=True)
    ]
    image_files = [(file, n) for file, n in files if file.lower().endswith(EXTENSIONS)]
    _report_others(info, [file for file, _ in files if not file.lower().endswith(EXTENSIONS)])
    if not image_files:
        raise missing(info, f"expected images in {folder}/CLASS/, got none")
    names = [name for name, _ in image_files]
    stats = [_size_and_time(folder / name) for name in names]
    sizes = [(name, size) for name, (size, _) in zip(names, stats, strict=True)]
    times = [time for _, time in stats]

    is_new = False

    def check(some: Sequence[str] = names) -> list[list[str]]:
        nonlocal is_new
        is_new = True
        reasons = in_threads(decode_error, [folder / name for name in some], f"checking {folder}")
        return [[name, why] for name, why in zip(some, reasons, strict=True) if why is not None]

    result = cached_json(
        "checked-images", key_of((str(folder.resolve()), sizes, times, decoders())), check, fresh
    )
    if not is_new:
        suspects = {line[0] for line in result if line}
        result = check([name for name in names if name in suspects])
    damaged = dict(result)
    skipped = tuple(Skipped(folder / name, why) for name, why in damaged.items())
    if skipped:
        _report(info, skipped, strict)
    images = [(name, label) for name, label in image_files if name not in damaged]
    return FolderSet(
        name=info.name,
        root=folder,
        files=tuple(name for name, _ in images),
        labels=torch.tensor([label for _, label in images], dtype=torch.int64),
        classes=tuple(classes),
        image_size=(side, side),
        fingerprint=key_of((sizes, sorted(damaged)) if damaged else sizes)[:12],
        skipped=skipped,
    )


def read_split(request: Request, root: Path, part: str, side: int) -> FolderSet:
    """One split of a data set; the folder ``train``, if there is one, defines the classes."""
    info, folders = request.info, class_folders(request.info, root / part)
    classes = class_folders(info, root / "train") if (root / "train").is_dir() else folders
    unknown = sorted(set(folders) - set(classes))
    if unknown:
        raise DataError(
            f"{info.name}: expected only the classes of {root / 'train'} in {root / part}, got "
            f"also {', '.join(unknown[:_MOST_NAMES])}. A class that was not trained on cannot be "
            f"tested. Remove these folders, or add the classes to {root / 'train'}."
        )
    return read_folder(info, root / part, classes, side, strict=request.strict, fresh=request.fresh)


def class_folders(info: DatasetInfo, folder: Path) -> tuple[str, ...]:
    """The names of the class folders in ``folder``, sorted."""
    names = folder_names(folder)
    if not names:
        raise missing(info, f"expected one folder per class in {folder}, got none")
    return tuple(names)


def files_of_class(folder: Path, class_name: str, strict: bool = False) -> list[str]:
    """Names of a class's files at any depth, sorted, without hidden files and folders.

    A folder that cannot be read is skipped with a warning; ``strict`` raises an error.
    """
    on_error = _raise_unreadable if strict else _warn_unreadable
    files = []
    above = Path(os.path.realpath(folder))
    for place, names in _visible(folder / class_name, above, on_error):
        below = Path(place).relative_to(folder).as_posix()
        files += [f"{below}/{name}" for name in names]
    return sorted(files)


def files_below(folder: Path) -> list[Path]:
    """All files at any depth, sorted, without hidden files and folders."""
    above = Path(os.path.realpath(folder)).parent
    places = _visible(folder, above, _warn_unreadable)
    return sorted(Path(place) / name for place, names in places for name in names)


def folder_names(folder: Path) -> list[str]:
    """The names of the folders in a folder, sorted, without hidden ones."""
    with os.scandir(folder) as entries:
        return sorted(e.name for e in entries if e.is_dir() and not e.name.startswith("."))


def images_beside(folder: Path) -> list[str]:
    """The names of images outside the class folders."""
    return sorted(
        path.name
        for path in folder.iterdir()
        if path.name.lower().endswith(EXTENSIONS)
        and not path.name.startswith(".")
        and not path.is_dir()
    )


def report_beside(folder: Path) -> None:
    """Warn about images outside the class folders."""
    if names := images_beside(folder):
        _LOGGER.warning(
            "neural_similarity: %s: skipped %d image(s) outside the class folders; the first is "
            "%r. Move them into a class folder.",
            folder, len(names), names[0],
        )  # fmt: skip


def check_outside(path: Path, images: Path) -> None:
    """Raise if the output folder is in the image folder, where it would count as a class."""
    if path.resolve().is_relative_to(images.resolve()):
        raise RunError(
            f"{path}: expected a folder outside {images}, got one inside. It would count as a "
            f"class the next time. Nothing was changed. Choose another folder."
        )


def is_split(folder: Path) -> bool:
    """Whether a folder has a data set that is already split, and not a class called "train".

    ``train/2020`` is a class of that data set, or a folder in the class "train". It is the former
    if there is another split, or if there are no images in the other folders.
    """
    names = set(folder_names(folder))
    lower = {name.lower(): name for name in names}
    if "train" in lower and "train" not in names and SPLITS & (lower.keys() - {"train"}):
        splits = ", ".join(sorted(lower[name] for name in lower.keys() & SPLITS))
        raise DataError(
            f"{folder}: expected lower-case names of the splits of a data set, got {splits}. "
            f"Rename them."
        )
    if "train" not in names or not folder_names(folder / "train"):
        return False
    others = names - {"train"}
    return bool(others & SPLITS) or not any(_has_images(folder / name) for name in others)


def _has_images(folder: Path) -> bool:
    return any(
        name.lower().endswith(EXTENSIONS)
        for _, names in _visible(folder, Path(os.path.realpath(folder)).parent, _warn_unreadable)
        for name in names
    )


def _visible(
    folder: Path, above: Path, on_error: Callable[[OSError], None]
) -> Iterator[tuple[str, list[str]]]:
    """Every folder below, and its files, without hidden ones; links back are not followed."""
    visited = set[str]()
    for place, folders, names in os.walk(folder, onerror=on_error, followlinks=True):
        real = os.path.realpath(place)
        if real in visited or above.is_relative_to(real):  # a link back
            folders.clear()
            continue
        visited.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield place, [name for name in names if not name.startswith(".")]


def _warn_unreadable(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):  # somebody may delete folders meanwhile
        _LOGGER.warning("neural_similarity: skipped %s: %s", error.filename, error.strerror)


def _raise_unreadable(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):  # somebody may delete folders meanwhile
        raise DataError(
            f"{error.filename}: expected a folder that can be read, got {error.strerror}. Its "
            f"files would be left out. Change its permissions, or move it away."
        ) from error


def _size_and_time(file: Path) -> tuple[int, int]:
    """Size and modification time; -1 for a broken link, which decoding reports."""
    try:
        stat = file.stat()
    except OSError:
        return -1, -1
    return stat.st_size, stat.st_mtime_ns


def _report_others(info: DatasetInfo, names: list[str]) -> None:
    """Warn about files without the suffix of an image that we read: they may be a mistake."""
    if names:
        _LOGGER.warning(
            "neural_similarity: %s: skipped %d file(s) in formats that are not read: %s",
            info.name, len(names), _some(names),
        )  # fmt: skip


def _some(names: Sequence[str]) -> str:
    """The first names, as text for any log: a name may contain bytes that are not text."""
    more = f"; and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    text = "; ".join(names[:_MOST_NAMES]) + more
    return os.fsencode(text).decode("utf-8", "backslashreplace")


def _report(info: DatasetInfo, skipped: tuple[Skipped, ...], strict: bool) -> None:
    names = _some([f"{bad.path} ({bad.reason})" for bad in skipped])
    if strict:
        raise DataError(
            f"{info.name}: expected every file to be an image that can be decoded, got "
            f"{len(skipped)} that cannot: {names}. Remove them, or leave out --strict to "
            f"skip them."
        )
    _LOGGER.warning("neural_similarity: %s: skipped %d file(s): %s", info.name, len(skipped), names)
