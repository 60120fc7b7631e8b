"""Batches for training and for evaluation, the same for any number of processes.

A plan gives the images of every batch and the random numbers that augment them; it depends only on
the seed, the epoch and the number of the batch. A loader follows the plan, with images from memory
(here) or from files (:mod:`.streaming`). So an epoch can start at any batch, and the batches are
the same as if it had started at the first.
"""

from __future__ import annotations

import hashlib
import math
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, SupportsIndex

import torch
from torch import Tensor

from ..errors import DataError
from .augment import Augment, apply_numbers, color_shift, draw_numbers
from .image_sets import FolderSet, ImageSet, MemorySet

__all__ = [
    "ColorNoise",
    "Loader",
    "Plan",
    "eval_loader",
    "generator_of",
    "normalise",
    "split_validation",
    "train_loader",
    "whole_number",
]

Batch = tuple[Tensor, Tensor]
#: The indices of the images of a batch, and the random numbers that augment each of them.
Planned = tuple[Tensor, Tensor]


class Loader(Protocol):
    """Batches of an epoch: normalised float32 images, channels last, and int64 labels."""

    def __len__(self) -> int:
        """The number of batches in an epoch, for this process."""

    def epoch(self, number: int = 0, start: int = 0) -> Iterator[Batch]:
        """The batches of epoch ``number``, starting with batch ``start``."""


class Plan(Protocol):
    """The images and the random numbers of each batch of this process."""

    def __len__(self) -> int: ...

    def batches(self, epoch: int, start: int) -> Iterator[Planned]: ...


def train_loader(
    dataset: ImageSet,
    batch_size: int,
    *,
    augment: Augment,
    mean: Sequence[float],
    std: Sequence[float],
    seed: int,
    rank: int = 0,
    world_size: int = 1,
    workers: int = 0,
) -> Loader:
    """Shuffled and augmented batches; an incomplete batch at the end of an epoch is dropped.

    The order depends on seed and epoch, the augmentation of a batch on seed, epoch and its number.
    Every rank gets its own part of the same batch: put together in the order of ranks, the parts
    are the batch of a single process, bit for bit.

    Args:
        dataset: the images. If there are fewer than ``batch_size``, all of them are one batch.
        batch_size: images in a batch, over all processes.
        augment: the augmentation.
        mean, std: of every channel, for pixels from 0 to 1.
        seed: seed of order and augmentation.
        rank, world_size: the number of this process, and of all processes.
        workers: processes that decode images; not used for a set in memory.

    Example:
        >>> from neural_similarity.data import load_dataset
        >>> digits = load_dataset("digits")
        >>> mean, std = digits.statistics()
        >>> loader = train_loader(digits, 64, augment=Augment(1), mean=mean, std=std, seed=0)
        >>> images, labels = next(loader.epoch(0))
        >>> images.shape, images.dtype, labels.shape
        (torch.Size([64, 1, 8, 8]), torch.float32, torch.Size([64]))
    """
    plan = _Training(len(dataset), batch_size, seed, rank, world_size)
    return _loader("train_loader", dataset, plan, augment, mean, std, workers)


def eval_loader(
    dataset: ImageSet,
    batch_size: int,
    *,
    mean: Sequence[float],
    std: Sequence[float],
    rank: int = 0,
    world_size: int = 1,
    workers: int = 0,
) -> Loader:
    """Every image once, in order and without augmentation; every epoch is the same.

    Each rank has a contiguous part of the images. One may have a batch more than another, or none
    if there are fewer images than ranks: add up sums and counts, do not average averages.

    Args: as in :func:`train_loader`.
    """
    plan = _Evaluation(len(dataset), batch_size, rank, world_size)
    return _loader("eval_loader", dataset, plan, None, mean, std, workers)


def split_validation(
    dataset: ImageSet, fraction: float, seed: int = 0
) -> tuple[ImageSet, ImageSet]:
    """Hold out ``fraction`` of every class for validation; returns the rest and the held-out part.

    Every class with two images or more is in both. The same seed gives the same parts. Copies of an
    image, where a data set knows them, stay together: they count as one.

    Example:
        >>> from neural_similarity.data import load_dataset
        >>> training, validation = split_validation(load_dataset("digits"), 0.1)
        >>> len(training) + len(validation) == len(load_dataset("digits"))
        True
    """
    if not 0 < fraction < 1:
        raise DataError(
            f"split_validation: expected a fraction between 0 and 1, got {fraction}. "
            f"It is the share of every class that is held out."
        )
    generator = generator_of(seed, "validation")
    groups = dataset.groups if isinstance(dataset, FolderSet) else None
    held_out = torch.zeros(len(dataset), dtype=torch.bool)
    first = ~held_out if groups is None else _first_of_each(groups)
    for label in range(dataset.num_classes):
        members = (first & (dataset.labels == label)).nonzero().flatten()
        shuffled = members[torch.randperm(len(members), generator=generator)]
        count = round(fraction * len(members))
        if len(members) >= 2:
            count = min(max(count, 1), len(members) - 1)
        held_out[shuffled[:count]] = True
    if groups is not None:
        held_out = torch.isin(groups, groups[held_out])
    parts = [mask.nonzero().flatten() for mask in (~held_out, held_out)]
    return dataset.subset(parts[0]), dataset.subset(parts[1])


def _first_of_each(groups: Tensor) -> Tensor:
    """A mask of the first member of every group."""
    seen, first = set[int](), []
    for number in groups.tolist():
        first.append(number not in seen)
        seen.add(number)
    return torch.tensor(first, dtype=torch.bool)


def normalise(images: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """uint8 images ``(N, C, H, W)`` as float32, channels last: ``(pixel / 255 - mean) / std``."""
    pixels = images.permute(0, 2, 3, 1).contiguous()
    return pixels.sub(255 * mean).mul_(1 / (255 * std)).permute(0, 3, 1, 2)


@dataclass(frozen=True)
class ColorNoise:
    """Colour noise on normalised images; ``axes`` are those of the data set, None without noise."""

    axes: Tensor | None = None
    noise: float = 0.0

    @classmethod
    def of(cls, dataset: ImageSet, augment: Augment | None) -> ColorNoise:
        """The noise that an augmentation asks for."""
        if augment is None or not augment.color_noise:
            return cls()
        return cls(dataset.color_axes(), augment.color_noise)

    def added(self, images: Tensor, numbers: Tensor, std: Tensor) -> Tensor:
        """The images with their noise; ``std`` is what their pixels were divided by."""
        if self.axes is None:
            return images
        shift = color_shift(numbers, self.axes, self.noise).to(images) / std
        return images + shift[:, :, None, None]


@dataclass(frozen=True)
class _Training:
    """Shuffled batches of equal size; each rank has its part of each."""

    size: int
    batch_size: int
    seed: int
    rank: int
    world_size: int

    def __post_init__(self) -> None:
        _check_ranks("train_loader", self.batch_size, self.rank, self.world_size)
        if not self.size:
            raise DataError("train_loader: expected at least one image, got an empty data set.")
        if self._images % self.world_size:
            raise DataError(
                f"train_loader: expected a batch that can be divided among {self.world_size} "
                f"processes, got {self._images} images. Every process takes an equal part. Change "
                f"the batch size"
                + (" or use fewer processes." if self._images == self.batch_size else
                   f", or use fewer processes: the data set has only {self.size} images.")
            )  # fmt: skip

    @property
    def _images(self) -> int:
        return min(self.batch_size, self.size)

    def __len__(self) -> int:
        return self.size // self._images

    def batches(self, epoch: int, start: int) -> Iterator[Planned]:
        order = torch.randperm(self.size, generator=generator_of(self.seed, "order", epoch))
        share = self._images // self.world_size
        mine = slice(self.rank * share, (self.rank + 1) * share)
        for batch in range(start, len(self)):
            generator = generator_of(self.seed, "augment", epoch, batch)
            numbers = draw_numbers(self._images, generator)
            rows = order[batch * self._images : (batch + 1) * self._images]
            yield rows[mine], numbers[mine]


@dataclass(frozen=True)
class _Evaluation:
    """All images once and in order; each rank has a contiguous part."""

    size: int
    batch_size: int
    rank: int
    world_size: int

    def __post_init__(self) -> None:
        _check_ranks("eval_loader", self.batch_size, self.rank, self.world_size)

    @property
    def _share(self) -> range:
        first, last = (self.size * r // self.world_size for r in (self.rank, self.rank + 1))
        return range(first, last)

    @property
    def _images(self) -> int:
        return max(self.batch_size // self.world_size, 1)

    def __len__(self) -> int:
        return -(-len(self._share) // self._images)

    def batches(self, epoch: int, start: int) -> Iterator[Planned]:
        for batch in range(start, len(self)):
            rows = torch.tensor(self._share[batch * self._images : (batch + 1) * self._images])
            yield rows, torch.zeros(len(rows), 0)


class _MemoryLoader:
    """Gathers, augments and normalises whole batches of a set in memory."""

    def __init__(
        self, dataset: MemorySet, plan: Plan, augment: Augment | None, mean: Tensor, std: Tensor
    ) -> None:
        self._dataset, self._plan, self._augment = dataset, plan, augment
        self._mean, self._std = mean, std
        self._noise = ColorNoise.of(dataset, augment)

    def __len__(self) -> int:
        return len(self._plan)

    def epoch(self, number: int = 0, start: int = 0) -> Iterator[Batch]:
        for rows, numbers in self._plan.batches(number, start):
            images = self._dataset.images[rows]
            if self._augment is not None:
                images = apply_numbers(images, self._augment, numbers)
            pixels = normalise(images, self._mean, self._std)
            yield self._noise.added(pixels, numbers, self._std), self._dataset.labels[rows]


def _loader(
    where: str,
    dataset: ImageSet,
    plan: Plan,
    augment: Augment | None,
    mean: Sequence[float],
    std: Sequence[float],
    workers: int,
) -> Loader:
    for what, values in (("mean", mean), ("std", std)):
        if len(values) != dataset.in_channels:
            raise DataError(
                f"{where}: expected {what} with {dataset.in_channels} value(s), one per channel of "
                f"{dataset.name!r}, got {len(values)}. Use the statistics() of the data set."
            )
    if not all(0 < value < math.inf for value in std):
        raise DataError(
            f"{where}: expected finite std above 0, got {tuple(std)}. Pixels are divided by it. "
            f"Use 1 for a channel that is constant."
        )
    if not all(map(math.isfinite, mean)):
        raise DataError(
            f"{where}: expected finite mean, got {tuple(mean)}. Use the statistics() of the data "
            f"set."
        )
    means, deviations = (torch.tensor(values, dtype=torch.float32) for values in (mean, std))
    if isinstance(dataset, FolderSet):
        from .streaming import FolderLoader

        return FolderLoader(dataset, plan, augment, means, deviations, workers)
    return _MemoryLoader(dataset, plan, augment, means, deviations)


def _check_ranks(where: str, batch_size: int, rank: int, world_size: int) -> None:
    if batch_size < 1:
        raise DataError(f"{where}: expected a batch of at least 1 image, got {batch_size}.")
    if not 0 <= rank < world_size:
        raise DataError(
            f"{where}: expected a rank from 0 to {world_size - 1}, got {rank}. "
            f"There are {world_size} process(es)."
        )


def generator_of(seed: int, *what: str | int) -> torch.Generator:
    """A generator that depends on the seed and on ``what``: a purpose, an epoch, a batch."""
    parts = (part if isinstance(part, str) else whole_number(part) for part in (seed, *what))
    digest = hashlib.sha256(repr(tuple(parts)).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little"))


def whole_number(value: SupportsIndex) -> int:
    """A whole number as Python's own: NumPy's would give other random numbers."""
    try:
        return operator.index(value)
    except TypeError as error:
        raise DataError(
            f"loader: expected a whole number as seed or epoch, got {value!r}. Others would give "
            f"other random numbers on other machines."
        ) from error
