"""Photographs in folders, one a class: ImageNet, and whatever people have."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path

import torch

from ..errors import DataError
from ._cache import cached_json, key_of
from ._layout import missing
from .augment import Augment
from .images import EXTENSIONS, decode_error, in_threads
from .loader import split_validation
from .registry import DatasetInfo, Request, register_dataset
from .sets import FolderSet, ImageSet, Skipped

__all__ = ["IMAGEFOLDER", "IMAGENET", "read_folder"]

_LOGGER = logging.getLogger("neural_similarity")
_TEST_SHARE, _SPLIT_SEED = 0.2, 0
_NAMED = 5

IMAGENET = DatasetInfo(
    name="imagenet",
    kind="classification",
    splits=("train", "val"),
    description="Photographs in 1,000 classes, 1.28 million + 50,000, brought to 224 × 224.",
    augment=Augment(crop=0, flip=True, resized_crop=True),
    layout="train/WNID/*.JPEG and val/WNID/*.JPEG, in imagenet/ or the data directory itself",
    home="https://www.image-net.org",
    licence="ImageNet's terms: research without commercial use",
    citation="Russakovsky, Deng and others, 2015",
    by_hand="It may not be passed on: get it at https://www.image-net.org (a free account is "
    "needed), unpack it, and sort the validation images into a folder a class.",
)
IMAGEFOLDER = DatasetInfo(
    name="imagefolder",
    kind="classification",
    splits=("train", "val", "test"),
    description="Images of your own, a folder per class, brought to 84 × 84.",
    augment=Augment(crop=0, flip=True, resized_crop=True),
    layout="train/CLASS/* and test/CLASS/* or val/CLASS/*, or CLASS/* alone, of which a fifth is "
    "for test; in the data directory itself",
    home="you",
    by_hand="Put your images there, in one folder a class.",
)


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
        copy=key_of(sizes)[:12],
        skipped=skipped,
    )


def _load_imagenet(request: Request) -> ImageSet:
    roots = (request.data_dir / "imagenet", request.data_dir)
    root = next((root for root in roots if (root / request.split).is_dir()), None)
    if root is None:
        places = " or ".join(str(root / request.split) for root in roots)
        raise missing(IMAGENET, f"expected folders WNID in {places}, got no such folder")
    return _read_split(request, root, request.split, request.image_size or 224)


def _load_imagefolder(request: Request) -> ImageSet:
    root, side = request.data_dir, request.image_size or 84
    if not root.is_dir():
        raise missing(IMAGEFOLDER, f"expected a folder of folders, got no folder {root}")
    if (root / "train").is_dir():
        names = ("test", "val") if request.split == "test" else (request.split,)
        for name in names:
            if (root / name).is_dir():
                return _read_split(request, root, name, side)
        wanted = " or ".join(str(root / name) for name in names)
        raise missing(IMAGEFOLDER, f"expected {wanted} beside {root / 'train'}, got none")
    if request.split == "val":
        raise missing(
            IMAGEFOLDER,
            f"expected {root / 'train'} and {root / 'val'}, got a folder a class, which is split "
            f"into 'train' and 'test' only",
        )
    everything = read_folder(
        IMAGEFOLDER, root, _classes(IMAGEFOLDER, root), side, strict=request.strict
    )
    training, test = split_validation(everything, _TEST_SHARE, _SPLIT_SEED)
    return training if request.split == "train" else test


def _read_split(request: Request, root: Path, part: str, side: int) -> FolderSet:
    """One part of a set; the training part, where there is one, says which classes there are."""
    info, own = request.info, _classes(request.info, root / part)
    classes = _classes(info, root / "train") if (root / "train").is_dir() else own
    strangers = sorted(set(own) - set(classes))
    if strangers:
        raise DataError(
            f"{info.name}: expected the classes of {root / 'train'} in {root / part}, got also "
            f"{', '.join(strangers[:_NAMED])}. A class that was not learned cannot be tested."
        )
    return read_folder(info, root / part, classes, side, strict=request.strict)


def _classes(info: DatasetInfo, folder: Path) -> tuple[str, ...]:
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


register_dataset(IMAGENET, _load_imagenet)
register_dataset(IMAGEFOLDER, _load_imagefolder)
