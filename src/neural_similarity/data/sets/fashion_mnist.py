"""Fashion-MNIST: clothes, 60,000 + 10,000 grey images of 28 × 28, in idx files."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np
import torch

from ...errors import DataError
from ..augment import Augment
from ..image_sets import ImageSet, MemorySet
from ..locate import find_folder
from ..registry import DatasetInfo, Request, register_dataset

__all__ = ["DEBIAN", "INFO", "read_idx"]

INFO = DatasetInfo(
    name="fashion-mnist",
    kind="classification",
    splits=("train", "test"),
    description="Clothes in 10 classes, 60,000 + 10,000 grey images, 28 × 28.",
    augment=Augment(crop=2, flip=True),
    layout="train-images-idx3-ubyte, t10k-labels-idx1-ubyte and so on, with or without .gz, in "
    "fashion-mnist/, FashionMNIST/raw/ (torchvision's) or the data directory itself, or where "
    "Debian's package dataset-fashion-mnist puts them",
    home="https://github.com/zalandoresearch/fashion-mnist",
    licence="MIT",
    citation="Xiao, Rasul and Vollgraf, 2017",
)

#: Where Debian's package dataset-fashion-mnist puts the files.
DEBIAN = (Path("/usr/share/datasets/fashion-mnist"), Path("/usr/share/dataset-fashion-mnist"))

_CLASSES = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)
_MOST_BYTES = 2**28  # the published files have 47 million


def read_idx(path: Path, axes: int) -> np.ndarray:
    """An array of bytes in the idx format: two zeros, a type, the axes, their sizes, the bytes."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            head = file.read(4 + 4 * axes)
            if head[:4] != bytes((0, 0, 8, axes)) or len(head) < 4 + 4 * axes:
                raise _damaged(path, f"a file that begins with {head[:4].hex(' ') or 'nothing'}")
            shape = struct.unpack(f">{axes}I", head[4:])
            size = math.prod(shape)
            if size > _MOST_BYTES:
                raise _damaged(path, f"one of shape {shape}")
            content = file.read(size + 1)  # no more, since a small .gz may unpack to terabytes
    except (OSError, EOFError, zlib.error) as error:
        raise _damaged(path, f"a file that cannot be unpacked: {error}") from error
    if len(content) != size:
        count = "too many" if len(content) > size else f"{len(content)}"
        raise _damaged(path, f"{count} bytes for the shape {shape}")
    return np.frombuffer(content, np.uint8).reshape(shape)


def _load(request: Request) -> ImageSet:
    part = {"train": "train", "test": "t10k"}[request.split]
    names = (f"{part}-images-idx3-ubyte", f"{part}-labels-idx1-ubyte")
    root = request.data_dir
    folder = find_folder(
        request,
        (root / "fashion-mnist", root / "FashionMNIST" / "raw", root, *DEBIAN),
        lambda folder: all(_file(folder, name) for name in names),
        f"{names[0]} and {names[1]}, with or without .gz,",
    )
    images, labels = (
        read_idx(_file(folder, name) or folder / name, axes)
        for name, axes in zip(names, (3, 1), strict=True)
    )
    return MemorySet.of(
        INFO.name,
        torch.from_numpy(images.copy()).unsqueeze(1),
        torch.from_numpy(labels.astype(np.int64)),
        _CLASSES,
    )


def _file(folder: Path, name: str) -> Path | None:
    return next((p for p in (folder / name, folder / f"{name}.gz") if p.is_file()), None)


def _damaged(path: Path, got: str) -> DataError:
    return DataError(
        f"{path}: expected an idx file of unsigned bytes, got {got}. "
        f"The file is damaged. Download it again with nsl data get {INFO.name}."
    )


register_dataset(INFO, _load)
