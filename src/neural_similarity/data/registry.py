"""The registry of data sets, by name."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

import torch.nn.functional as F

from .. import _check
from .._memory import check_fits, check_side
from ..errors import UnknownNameError
from .augment import Augment, no_augment
from .image_sets import ImageSet, MemorySet

__all__ = [
    "DatasetInfo",
    "Request",
    "data_directory",
    "dataset_info",
    "list_datasets",
    "load_dataset",
    "register_dataset",
]


@dataclass(frozen=True)
class DatasetInfo:
    """Facts about a data set that are known before it is read.

    Args:
        name: the name in the registry.
        kind: ``"classification"``: the same classes in every split; ``"few-shot"``: every split has
            its own classes.
        splits: its splits; the last one is used to report results.
        description: one sentence.
        augment: the usual augmentation of training images.
        layout: one sentence: where its files are expected, below the data directory.
        home: where it comes from.
        licence: its terms, if known.
        citation: whom to cite.
        by_hand: how to get it, if ``nsl data get`` cannot download it.
    """

    name: str
    kind: Literal["classification", "few-shot"]
    splits: tuple[str, ...]
    description: str
    augment: Augment = no_augment
    layout: str = "it needs no files"
    home: str = ""
    licence: str = ""
    citation: str = ""
    by_hand: str = ""


@dataclass(frozen=True)
class Request:
    """The arguments of a function that reads a data set."""

    info: DatasetInfo
    split: str
    data_dir: Path
    image_size: int | None = None
    strict: bool = False
    fresh: bool = False


_REGISTRY: dict[str, tuple[DatasetInfo, Callable[[Request], ImageSet]]] = {}


def register_dataset(info: DatasetInfo, load: Callable[[Request], ImageSet]) -> None:
    """Add a data set to the registry: ``load`` reads the split that a request names.

    ``load`` may ignore ``image_size`` if it returns a :class:`MemorySet`: the images are resized
    afterwards.
    """
    loaders = {name: loader for name, (_, loader) in _REGISTRY.items()}
    _check.new_name("register_dataset", info.name, load, loaders)
    _REGISTRY[info.name] = (info, load)


def list_datasets(pattern: str = "*") -> list[str]:
    """The names of all data sets that match, sorted; ``*`` stands for anything.

    >>> list_datasets("dig*")
    ['digits']
    """
    return sorted(name for name in _REGISTRY if fnmatchcase(name, pattern))


def dataset_info(name: str) -> DatasetInfo:
    """Facts about a data set that are known before it is read.

    >>> dataset_info("digits").splits
    ('train', 'test')
    """
    return _registered("dataset_info", name)[0]


def load_dataset(
    name: str,
    split: str = "train",
    data_dir: str | Path | None = None,
    *,
    image_size: int | None = None,
    strict: bool = False,
    fresh: bool = False,
) -> ImageSet:
    """Read a data set.

    Args:
        name: one of :func:`list_datasets`.
        split: one of its splits.
        data_dir: the folder of its files; see :func:`data_directory`.
        image_size: resize images to this side; None keeps the size of the data set.
        strict: raise an error if a file cannot be decoded, instead of skipping it.
        fresh: decode all files again, also those that were found intact before.

    Example:
        >>> digits = load_dataset("digits", "test")
        >>> digits.num_classes, digits.image_size
        (10, (8, 8))
    """
    info, load = _registered("load_dataset", name)
    _check.known_name(f"load_dataset({name!r})", "split", split, info.splits)
    if image_size is not None:
        _check.whole_numbers("load_dataset", image_size=image_size)
        image_size = int(image_size)
        check_side("load_dataset", image_size)
    dataset = load(Request(info, split, data_directory(data_dir), image_size, strict, fresh))
    if isinstance(dataset, MemorySet) and image_size is not None:
        return _resized(dataset, image_size)
    return dataset


def data_directory(data_dir: str | Path | None = None) -> Path:
    """The folder of data sets: the argument, or ``$NEURAL_SIMILARITY_DATA``, or ``./data``."""
    return Path(data_dir or os.environ.get("NEURAL_SIMILARITY_DATA") or "data").expanduser()


def _registered(where: str, name: str) -> tuple[DatasetInfo, Callable[[Request], ImageSet]]:
    if name not in _REGISTRY and isinstance(name, str) and Path(name).is_dir():
        raise UnknownNameError(
            f"{where}: expected the name of a data set, got the folder {name!r}. For images "
            f"of your own, a folder per class, use data 'imagefolder' with data_dir {name!r}."
        )
    _check.known_name(where, "name", name, _REGISTRY)
    return _REGISTRY[name]


def _resized(dataset: MemorySet, side: int) -> MemorySet:
    """The same data set with images of another size."""
    if dataset.image_size == (side, side):
        return dataset
    size = len(dataset) * dataset.in_channels * side**2
    check_fits(f"load_dataset({dataset.name!r})", "the images", size, "Use a smaller image_size")
    images = F.interpolate(
        dataset.images, size=(side, side), mode="bilinear", antialias=True, align_corners=False
    )
    return MemorySet.of(dataset.name, images, dataset.labels, dataset.classes)
