"""CIFAR-10 and CIFAR-100 in their Python batches, and two few-shot sets from CIFAR-100."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch

from ...errors import DataError
from ..augment import Augment
from ..image_sets import MemorySet
from ..locate import find_folder, how_to_get
from ..registry import DatasetInfo, Request, register_dataset
from ._pickles import read_plain_pickle
from .class_splits import CIFAR_FS, FC100

__all__ = ["CIFAR10", "CIFAR100"]


@dataclass(frozen=True)
class _Files:
    """The files of CIFAR-10 or CIFAR-100."""

    folder: str
    train: tuple[str, ...]
    test: tuple[str, ...]
    meta: str
    labels: str
    names: str
    classes: int

    @property
    def all(self) -> tuple[str, ...]:
        return (*self.train, *self.test, self.meta)

    @property
    def layout(self) -> str:
        return f"{self.folder}/ or the data directory itself, with {', '.join(self.all)}"


CIFAR10 = _Files(
    folder="cifar-10-batches-py",
    train=tuple(f"data_batch_{number}" for number in range(1, 6)),
    test=("test_batch",),
    meta="batches.meta",
    labels="labels",
    names="label_names",
    classes=10,
)
CIFAR100 = _Files(
    folder="cifar-100-python",
    train=("train",),
    test=("test",),
    meta="meta",
    labels="fine_labels",
    names="fine_label_names",
    classes=100,
)


def _load(files: _Files, request: Request) -> MemorySet:
    batches = files.train if request.split == "train" else files.test
    return _read(files, request, batches)


def _load_few_shot(classes: dict[str, tuple[str, ...]], request: Request) -> MemorySet:
    """The 600 images of each class of a split, training and test images together."""
    whole = _read(CIFAR100, request, CIFAR100.train + CIFAR100.test)
    names = classes[request.split]
    unknown = sorted(set(names) - set(whole.classes))
    if unknown:
        raise DataError(
            f"{request.info.name}: expected the classes of CIFAR-100, got files without "
            f"{', '.join(unknown)}. The split selects classes by name. {how_to_get(request.info)}"
        )
    new = torch.full((whole.num_classes,), -1)
    new[[whole.classes.index(name) for name in names]] = torch.arange(len(names))
    labels = new[whole.labels]
    rows = torch.argsort(labels, stable=True)[(labels < 0).sum() :]
    return MemorySet.of(request.info.name, whole.images[rows], labels[rows], names)


def _read(files: _Files, request: Request, batches: Iterable[str]) -> MemorySet:
    folder = find_folder(
        request,
        (request.data_dir / files.folder, request.data_dir),
        # Folders of other data sets are often called train and test, too.
        lambda folder: all((folder / name).is_file() for name in files.all),
        f"the files {', '.join(files.all)}",
    )
    parts = [_batch(folder / name, files) for name in batches]
    images = torch.from_numpy(np.concatenate([images for images, _ in parts]))
    labels = torch.from_numpy(np.concatenate([labels for _, labels in parts]))
    return MemorySet.of(request.info.name, images, labels, _names(folder / files.meta, files))


def _batch(path: Path, files: _Files) -> tuple[np.ndarray, np.ndarray]:
    content = read_plain_pickle(path)
    pixels, labels = content.get("data"), content.get(files.labels)
    if not (isinstance(pixels, np.ndarray) and pixels.dtype == np.uint8 and pixels.ndim == 2):
        raise DataError(f"{path}: expected 'data' to be rows of bytes, got {_kind(pixels)}.")
    if pixels.shape[1] != 3 * 32 * 32:
        raise DataError(
            f"{path}: expected images of 3 × 32 × 32, got rows of {pixels.shape[1]} bytes."
        )
    if not (isinstance(labels, list) and len(labels) == len(pixels)):
        raise DataError(
            f"{path}: expected {files.labels!r} to list {len(pixels)} labels, got {_kind(labels)}."
        )
    if not all(isinstance(n, int) and 0 <= n < files.classes for n in labels):
        raise DataError(f"{path}: expected labels from 0 to {files.classes - 1}, got other values.")
    return pixels.reshape(-1, 3, 32, 32), np.array(labels, dtype=np.int64)


def _names(path: Path, files: _Files) -> tuple[str, ...]:
    names = read_plain_pickle(path).get(files.names)
    if not (isinstance(names, list) and len(names) == files.classes):
        raise DataError(
            f"{path}: expected {files.names!r} to list {files.classes} names, got {_kind(names)}."
        )
    if not all(isinstance(name, str) for name in names):
        raise DataError(f"{path}: expected {files.names!r} to list words, got other values.")
    return tuple(names)


def _kind(value: object) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype} with shape {value.shape}"
    return f"{len(value)} of them" if isinstance(value, list) else type(value).__name__


def _register() -> None:
    home = "https://www.cs.toronto.edu/~kriz/cifar.html"
    for files, name, each in ((CIFAR10, "cifar10", "6,000"), (CIFAR100, "cifar100", "600")):
        info = DatasetInfo(
            name=name,
            kind="classification",
            splits=("train", "test"),
            description=f"Photographs in {files.classes} classes, {each} of each, 50,000 + 10,000 "
            f"in colour, 32 × 32.",
            augment=Augment(crop=4, flip=True),
            layout=files.layout,
            home=home,
            citation="Krizhevsky, 2009",
        )
        register_dataset(info, partial(_load, files))
    for name, splits, citation in (
        ("cifar-fs", CIFAR_FS, "Bertinetto, Henriques, Torr and Vedaldi, 2019"),
        ("fc100", FC100, "Oreshkin, Rodríguez López and Lacoste, 2018"),
    ):
        sizes = " / ".join(str(len(classes)) for classes in splits.values())
        info = DatasetInfo(
            name=name,
            kind="few-shot",
            splits=("train", "val", "test"),
            description=f"CIFAR-100 for few-shot learning: {sizes} classes of 600 images.",
            augment=Augment(crop=4, flip=True),
            layout=CIFAR100.layout,
            home=home,
            citation=citation,
            by_hand="It consists of images of CIFAR-100: get that with nsl data get cifar100, or "
            "pass --data-dir.",
        )
        register_dataset(info, partial(_load_few_shot, splits))


_register()
