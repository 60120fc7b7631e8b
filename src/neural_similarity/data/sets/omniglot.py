"""Omniglot: 1,623 handwritten characters of 50 alphabets, each drawn by 20 people."""

from __future__ import annotations

from pathlib import Path

import torch

from ...errors import DataError
from .._cache import cached_set, key_of
from ..image_sets import ImageSet, MemorySet
from ..images import read_images
from ..locate import find_folder, how_to_get
from ..registry import DatasetInfo, Request, register_dataset

__all__ = ["INFO"]

INFO = DatasetInfo(
    name="omniglot",
    kind="few-shot",
    splits=("train", "test"),
    description="Handwritten characters, 964 / 659 classes of 20 grey images, 28 × 28, bright "
    "strokes; training and test alphabets differ.",
    layout="images_background/ and images_evaluation/ with ALPHABET/CHARACTER/*.png, in "
    "omniglot-py/ (torchvision's), omniglot/ or the data directory itself",
    home="https://github.com/brendenlake/omniglot",
    licence="MIT",
    citation="Lake, Salakhutdinov and Tenenbaum, 2015",
)

_SIDE = 28
_VERSION = 1


def _load(request: Request) -> ImageSet:
    part = {"train": "images_background", "test": "images_evaluation"}[request.split]
    root = request.data_dir
    folder = find_folder(
        request,
        (root / "omniglot-py" / part, root / "omniglot" / part, root / part),
        Path.is_dir,
        "folders ALPHABET/CHARACTER",
    )
    characters = sorted(path for path in folder.glob("*/*") if path.is_dir())
    files = [(path, n) for n, c in enumerate(characters) for path in sorted(c.glob("*.png"))]
    if not files:
        raise DataError(
            f"{INFO.name}: expected images ALPHABET/CHARACTER/*.png in {folder}, got none. "
            f"{how_to_get(INFO)}"
        )
    classes = tuple(f"{path.parent.name}/{path.name}" for path in characters)
    side = request.image_size or _SIDE

    def decode() -> MemorySet:
        what = f"decoding {INFO.name} {request.split}"
        images = 255 - read_images([path for path, _ in files], side, what, channels=1)
        return MemorySet.of(INFO.name, images, torch.tensor([n for _, n in files]), classes)

    stats = [(path.name, number, path.stat()) for path, number in files]
    sizes = [(name, number, stat.st_size, stat.st_mtime_ns) for name, number, stat in stats]
    key = key_of((_VERSION, side, classes, sizes))
    return cached_set(f"{INFO.name}-{request.split}-{side}", key, decode, request.fresh)


register_dataset(INFO, _load)
