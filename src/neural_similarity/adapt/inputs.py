"""Check the images and labels, of many types, that users pass to a classifier."""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import DataError

__all__ = ["check_lengths", "label_array", "listed", "numbered"]


def listed(images: Iterable[Any]) -> list[Any]:
    """A list of single images."""
    lone = isinstance(images, str | bytes | os.PathLike) or not hasattr(images, "__iter__")
    if lone or hasattr(images, "getexif"):
        raise DataError(
            f"images: expected a list of images, got {type(images).__name__}. Put a single image "
            f"into a list."
        )
    if isinstance(images, Tensor | np.ndarray) and not _is_batch(images):
        raise DataError(
            f"images: expected a list of images, a tensor (N, C, H, W) or an array (N, H, W, 3), "
            f"got shape {tuple(images.shape)}. Put a single image into a list."
        )
    separate = list(images)
    if not separate:
        raise DataError("images: expected at least one image, got none.")
    return separate


def numbered(labels: Sequence[Hashable], images: int) -> tuple[NDArray[Any], Tensor]:
    """The classes in order, and the class index of every label."""
    plain: list[Any] = [
        label.item() if isinstance(label, np.generic | Tensor) else label for label in labels
    ]
    check_lengths(images, len(plain))
    try:
        distinct = list(dict.fromkeys(plain))
    except TypeError as error:
        raise DataError(f"labels: expected hashable labels, got an {error}.") from error
    try:
        classes = sorted(distinct)
    except TypeError:
        classes = distinct  # of several types: in order of appearance
    if len(classes) < 2:
        raise DataError(
            f"labels: expected at least two classes, got {len(classes)} ({classes[0]!r}). With one "
            f"class there is nothing to classify."
        )
    places = {label: place for place, label in enumerate(classes)}
    return label_array(classes), torch.tensor([places[label] for label in plain])


def check_lengths(images: int, labels: int) -> None:
    """Raise unless there is one label per image."""
    if images != labels:
        raise DataError(
            f"labels: expected one label for each of {images} image(s), got {labels} label(s)."
        )


def label_array(classes: Sequence[Any]) -> NDArray[Any]:
    """An array of unchanged labels: NumPy would turn mixed types into text, tuples into rows."""
    if len({type(label) for label in classes}) == 1 and isinstance(classes[0], str | int | float):
        return np.array(classes)
    array = np.empty(len(classes), object)
    for place, label in enumerate(classes):
        array[place] = label
    return array


def _is_batch(images: Tensor | NDArray[Any]) -> bool:
    if images.ndim == 4 or isinstance(images, Tensor):
        return images.ndim == 4
    return images.ndim == 1 or (images.ndim == 3 and images.shape[2] != 3)
