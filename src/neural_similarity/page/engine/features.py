"""The features of a project's pictures: computed as they arrive, and never twice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ...adapt import FeatureExtractor, TrainingImages, embed_images, open_cache
from ...adapt.feature_cache import image_fingerprint
from ...errors import NeuralSimilarityError
from ..project import Listing, Picture
from ..project.pictures import check_pixels
from ..refused import RefusedError

__all__ = ["Examples", "Features"]


_GONE = "The file no longer exists."


@dataclass(frozen=True, eq=False)
class Examples:
    """The training examples at one moment.

    Attributes:
        labels: the classes that have a picture.
        pictures: those that have features; a row of ``data`` each.
        data: their features and class indices.
    """

    labels: tuple[str, ...]
    pictures: tuple[Picture, ...]
    data: TrainingImages


class Features:
    """Features by picture, in memory and in the cache on disk.

    Args:
        backbone: the network that computes them.
        folder: the project folder.

    Attributes:
        trouble: why a picture has no features, by its version.
    """

    def __init__(self, backbone: FeatureExtractor, folder: Path) -> None:
        self.backbone, self.folder = backbone, folder
        self.trouble: dict[str, str] = {}
        self._out_of_reach: set[str] = set()  # versions in trouble that are tried again
        self._revision = 0  # of the listing in which files were last looked for
        self._cache = open_cache(backbone)
        self._pairs: dict[str, Tensor] = {}

    def missing(self, listing: Listing) -> list[Picture]:
        """The pictures that still need features.

        After a change, files that were gone or could not be reached are looked for again: a
        deletion may be undone, and a disk may come back.
        """
        if listing.revision != self._revision:
            self._revision = listing.revision
            self.trouble = {
                v: why for v, why in self.trouble.items() if v not in self._out_of_reach
            }
            self._out_of_reach.clear()
        return [
            picture
            for picture in listing.pictures
            if picture.version not in self._pairs and picture.version not in self.trouble
        ]

    def compute(self, pictures: Sequence[Picture]) -> None:
        """Compute the features of these pictures; unreadable ones are recorded."""
        try:
            pairs = self._embedded(pictures)
        except (NeuralSimilarityError, OSError) as error:
            if len(pictures) == 1:
                self.trouble[pictures[0].version] = _reason(error)
                if _is_out_of_reach(error):
                    self._out_of_reach.add(pictures[0].version)
                return
            for picture in pictures:
                self.compute([picture])
            return
        self._pairs |= {p.version: pair for p, pair in zip(pictures, pairs, strict=True)}

    def examples(self, listing: Listing) -> Examples | None:
        """The training examples; None unless two classes have pictures."""
        pictures = tuple(p for p in listing.pictures if p.version in self._pairs)
        labels = tuple(label for label in listing.labels if any(p.label == label for p in pictures))
        if len(labels) < 2:
            return None
        numbers = {label: number for number, label in enumerate(labels)}
        pairs = torch.stack([self._pairs[picture.version] for picture in pictures])
        data = TrainingImages(
            backbone=self.backbone,
            images=[self.folder / picture.file for picture in pictures],
            labels=torch.tensor([numbers[picture.label] for picture in pictures]),
            n_way=len(labels),
            features=pairs[:, 0],
            mirrored=pairs[:, 1],
            thumbnails=torch.empty(0),  # only a saved classifier needs them
        )
        return Examples(labels, pictures, data)

    def _embedded(self, pictures: Sequence[Picture]) -> list[Tensor]:
        """Pairs of features; known pictures are not decoded again."""
        paths = [self.folder / picture.file for picture in pictures]
        for path in paths:
            check_pixels(path)
        pairs = [self._cache.get(image_fingerprint(path)) for path in paths]
        new = [place for place, pair in enumerate(pairs) if pair is None]
        if new:
            numbers = torch.zeros(len(new), dtype=torch.int64)
            images = [paths[place] for place in new]
            data = embed_images(self.backbone, images, numbers, 1, cache=self._cache)
            for place, one, other in zip(new, data.features, data.mirrored, strict=True):
                pairs[place] = torch.stack([one, other])
        return [pair for pair in pairs if pair is not None]


def _is_out_of_reach(error: Exception) -> bool:
    """Whether the system did not give us the file; a damaged picture has no such number."""
    cause = error if isinstance(error, OSError) else error.__cause__
    return isinstance(cause, OSError) and cause.errno is not None


def _reason(error: Exception) -> str:
    """Why a picture cannot be used, in words that the page shows."""
    if isinstance(error, FileNotFoundError):
        return _GONE
    if isinstance(error, RefusedError):
        return str(error)
    return "The picture cannot be read."
