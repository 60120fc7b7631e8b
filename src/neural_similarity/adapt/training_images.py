"""A user's images and their features, which are computed once for all methods."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from .backbones.extractor import FeatureExtractor
from .backbones.network_output import check_finite
from .feature_cache import FeatureCache, image_fingerprint
from .preprocessing import in_batches, in_threads, read_all
from .validation.duplicates import near_duplicates

__all__ = ["THUMBNAIL", "TrainingImages", "as_array", "embed_images"]

THUMBNAIL = 96
"""The largest side of the stored thumbnails."""
_BATCH = 32
_PASS = 16  # images per forward pass: more would not fit the processor's cache

Callback = Callable[[int, int], None]


@dataclass(eq=False)
class TrainingImages:
    """Images, their labels, and what a backbone computes from them.

    Attributes:
        backbone: the network that computed the features.
        images: paths, PIL images or arrays, as the user passed them.
        labels: ``(N,)``, from 0 to ``n_way − 1``.
        n_way: number of classes.
        features: ``(N, D)``.
        mirrored: ``(N, D)``, features of the mirror images.
        thumbnails: uint8, ``(N, C, s, s)``, with sides of at most :data:`THUMBNAIL` pixels.
    """

    backbone: FeatureExtractor
    images: Sequence[Any]
    labels: Tensor
    n_way: int
    features: Tensor
    mirrored: Tensor
    thumbnails: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def groups(self) -> Tensor:
        """``(N,)``, the same number for near-identical images."""
        return near_duplicates(self.features, self.labels, self.mirrored)

    def pixels(self, rows: Tensor) -> Tensor:
        """uint8 ``(n, C, S, S)``: the images of these rows, at the backbone's input size."""
        images = [self.images[row] for row in rows.tolist()]
        return read_all(images, self.backbone.preprocessing)

    def subset(self, rows: Tensor, labels: Tensor) -> TrainingImages:
        """The images in these rows, with new labels, from 0."""
        return TrainingImages(
            self.backbone, [self.images[row] for row in rows.tolist()], labels,
            int(labels.max()) + 1, self.features[rows], self.mirrored[rows], self.thumbnails[rows],
        )  # fmt: skip


def embed_images(
    backbone: FeatureExtractor,
    images: Sequence[Any],
    labels: Tensor,
    n_way: int,
    callback: Callback | None = None,
    cache: FeatureCache | None = None,
) -> TrainingImages:
    """Compute the features of images and of their mirror images, batch by batch.

    Args:
        backbone: the network that returns features.
        images: paths, PIL images or arrays.
        labels: ``(N,)``.
        n_way: number of classes.
        callback: called with the number of images done and the total.
        cache: holds features that were computed earlier; new ones are added.
    """
    store = FeatureCache(None) if cache is None else cache
    features, mirrored, thumbnails = [], [], []
    for batch in in_batches(images, _BATCH):
        pixels = read_all(batch, backbone.preprocessing)
        names = in_threads(image_fingerprint, batch) if store.keeps else [""] * len(batch)
        both = [store.get(name) for name in names]
        missing = [place for place, pair in enumerate(both) if pair is None]
        if missing:
            new = _features_of_both(backbone, pixels[missing])
            store.add([names[place] for place in missing], new)
            for place, pair in zip(missing, new, strict=True):
                both[place] = pair
        pairs = torch.stack([pair for pair in both if pair is not None])
        features.append(pairs[:, 0])
        mirrored.append(pairs[:, 1])
        thumbnails.append(_small(pixels))
        if callback is not None:
            callback(sum(map(len, features)), len(images))
    return TrainingImages(
        backbone, images, labels, n_way, torch.cat(features), torch.cat(mirrored),
        torch.cat(thumbnails),
    )  # fmt: skip


def as_array(image: Tensor) -> NDArray[np.uint8]:
    """An image ``(C, H, W)`` as an array for plots: ``(H, W)`` or ``(H, W, 3)``."""
    array: NDArray[np.uint8] = (image[0] if len(image) == 1 else image.permute(1, 2, 0)).numpy()
    return array


@torch.no_grad()
def _features_of_both(backbone: FeatureExtractor, pixels: Tensor) -> Tensor:
    """``(n, 2, D)``: features of images and of their mirror images."""
    ready = backbone.preprocessing.normalise(torch.cat([pixels, pixels.flip(3)]))
    rows = torch.cat([backbone.module(part).flatten(1) for part in ready.split(_PASS)])
    features: Tensor = rows.unflatten(0, (2, len(pixels))).transpose(0, 1)
    check_finite(features.flatten(1))
    return features.contiguous()


def _small(pixels: Tensor) -> Tensor:
    if pixels.shape[-1] <= THUMBNAIL:
        return pixels
    return F.interpolate(pixels.float(), (THUMBNAIL, THUMBNAIL), mode="area").round().byte()
