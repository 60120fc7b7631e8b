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
    by_hand="Put your images there, in one folder a class, or pass --data-dir.",
)


def read_folder(
    info: DatasetInfo, folder: Path, classes: Sequence[str], side: int, *, strict: bool = False
) -> FolderSet:
    """The images below ``folder/CLASS`` for every class, without those that cannot be decoded.

    Every file is decoded once, to find those that are damaged before training meets them; the
    result is kept until a name, a size or a time of change differs.

    Args:
        info: which set this is.
        folder: a folder with a folder a class.
        classes: the names of the classes, in the order of their numbers.
        side: side of the square that images are brought to.
        strict: end with an error if a file cannot be decoded.
    """
    listed = [(file, n) for n, name in enumerate(classes) for file in _files(folder, name)]
    if not listed:
        raise missing(info, f"expected images in {folder}/CLASS/, got none")
    names = [name for name, _ in listed]
    stats = [(folder / name).stat() for name in names]
    sizes = [(name, stat.st_size) for name, stat in zip(names, stats, strict=True)]
    times = [stat.st_mtime_ns for stat in stats]

    def check() -> list[list[str]]:
        reasons = in_threads(decode_error, [folder / n for n in names], f"checking {folder}")
        return [[name, why] for name, why in zip(names, reasons, strict=True) if why is not None]

    broken = dict(
        cached_json("checked-images", key_of((str(folder.resolve()), sizes, times)), check)
    )
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
    """Names of a class's images at any depth, sorted; hidden ones are other programs' business."""
    found = []
    for place, folders, names in os.walk(folder / class_name, followlinks=True):
        folders[:] = [name for name in folders if not name.startswith(".")]
        below = Path(place).relative_to(folder).as_posix()
        found += [
            f"{below}/{name}"
            for name in names
            if not name.startswith(".") and name.lower().endswith(EXTENSIONS)
        ]
    return sorted(found)


def _report(info: DatasetInfo, skipped: tuple[Skipped, ...], strict: bool) -> None:
    named = "; ".join(f"{bad.path} ({bad.reason})" for bad in skipped[:_NAMED])
    more = f"; and {len(skipped) - _NAMED} more" if len(skipped) > _NAMED else ""
    if strict:
        raise DataError(
            f"{info.name}: expected every file to be an image that can be decoded, got "
            f"{len(skipped)} that cannot: {named}{more}. Remove them, or leave out --strict to "
            f"skip them."
        )
    _LOGGER.warning(
        "neural_similarity: %s: %d file(s) skipped: %s%s", info.name, len(skipped), named, more
    )


register_dataset(IMAGENET, _load_imagenet)
register_dataset(IMAGEFOLDER, _load_imagefolder)
