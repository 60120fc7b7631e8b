"""A cache of data sets that take long to draw or decode; entries are checked before use."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from .._io import cache_directory, make_private_folder, whole_file
from .._json import build, parse_json, read_json
from .._tensor_files import read_tensors
from ..errors import DataError
from .image_sets import MemorySet, fingerprint_of

__all__ = ["cached_json", "cached_set", "key_of"]

_LOGGER = logging.getLogger("neural_similarity")


def key_of(parts: Iterable[object]) -> str:
    """A short name for everything that the content depends on."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(repr(part).encode() + b"\0")
    return digest.hexdigest()[:20]


def cached_set(
    name: str, key: str, make: Callable[[], MemorySet], fresh: bool = False
) -> MemorySet:
    """The set cached under this name and key, or a new one, which is then cached.

    The file contains its fingerprint: a damaged one is made again. So is every one if ``fresh``.
    """
    path = _place(f"{name}-{key}.safetensors")
    dataset = None if path is None or fresh else _read_set(path)
    if dataset is not None:
        return dataset
    dataset = make()
    metadata = {
        "name": dataset.name,
        "classes": json.dumps(dataset.classes),
        "copy": dataset.fingerprint,
    }
    tensors = {"images": dataset.images.contiguous(), "labels": dataset.labels.contiguous()}
    if path is not None:
        _keep(path, lambda scratch: save_file(tensors, scratch, metadata))
    return dataset


def cached_json(
    name: str, key: str, make: Callable[[], list[list[str]]], fresh: bool = False
) -> list[list[str]]:
    """The same for lists of words."""
    path = _place(f"{name}-{key}.json")
    if path is None:
        return make()
    if not fresh:
        with suppress(DataError):
            return read_json(path, list[list[str]], DataError)
    lists = make()
    _keep(path, lambda scratch: scratch.write_text(json.dumps(lists)))
    return lists


def _place(name: str) -> Path | None:
    """Where to keep a file; None, with a warning, for a user without a home."""
    try:
        return cache_directory() / name
    except OSError as error:
        _LOGGER.warning("neural_similarity: %s is not cached: %s", name, error)
        return None


def _read_set(path: Path) -> MemorySet | None:
    if not os.path.lexists(path):  # Path.is_file raises where the folder cannot be read
        return None
    with suppress(DataError, LookupError):
        tensors, metadata = read_tensors(path, DataError, "images and labels")
        images, labels = tensors["images"], tensors["labels"]
        classes = parse_json(metadata["classes"], path, DataError)
        classes = build(tuple[str, ...], classes, path, DataError)
        plain = (images.dtype, labels.dtype) == (torch.uint8, torch.int64)
        if plain and fingerprint_of(images, labels) == metadata["copy"]:
            return MemorySet(metadata["name"], images, labels, classes, metadata["copy"])
    _LOGGER.warning("neural_similarity: %s is damaged and will be rebuilt", path)
    return None


def _keep(path: Path, write: Callable[[Path], object]) -> None:
    """Write next to the target, then move: no reader ever sees half a file.

    A cache that cannot be written only costs time at the next start.
    """
    try:
        make_private_folder(path.parent)
        with whole_file(path) as file:
            write(file)
    except (OSError, SafetensorError) as error:
        _LOGGER.warning("neural_similarity: %s could not be saved: %s", path.name, error)
