"""Batches of image files, decoded by workers that have no random numbers of their own.

The plan is made in the main process. A worker is told which files to read and by which numbers to
vary them, so that nothing depends on how many workers there are or on who is first, and no worker
keeps the names of a million files.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from ..errors import DataError
from .augment import Augment, apply_numbers, crop_box
from .image_sets import FolderSet
from .images import Window, middle, quietly, read_image
from .loader import Batch, Plan, normalise

__all__ = ["FolderLoader"]


class FolderLoader:
    """Reads, varies and normalises batches of image files.

    Workers live as long as the loader and run a few batches ahead.
    """

    def __init__(
        self,
        dataset: FolderSet,
        plan: Plan,
        augment: Augment | None,
        mean: Tensor,
        std: Tensor,
        workers: int,
    ) -> None:
        self._plan, self._mean, self._std = plan, mean, std
        self._orders = _Orders(dataset, plan)
        self._batches: DataLoader[Any] = DataLoader(
            _Reader(dataset.image_size, augment),
            batch_size=None,
            sampler=self._orders,
            num_workers=workers,
            collate_fn=_as_it_is,
            worker_init_fn=_leave_interrupts,
            persistent_workers=workers > 0,
            # Otherwise every epoch would take a number from the global generator, and a resumed
            # run would then go on with others.
            generator=torch.Generator(),
        )

    def __len__(self) -> int:
        return len(self._plan)

    def epoch(self, number: int = 0, start: int = 0) -> Iterator[Batch]:
        self._orders.epoch, self._orders.start = number, start
        for read in self._batches:
            if isinstance(read, DataError):
                raise read
            images, labels = read
            yield normalise(images, self._mean, self._std), labels


@dataclass(frozen=True)
class _Order:
    """What a worker is told: a batch."""

    paths: list[Path]
    labels: Tensor
    numbers: Tensor


class _Orders:
    """The batches of one epoch, for the DataLoader to walk through."""

    def __init__(self, dataset: FolderSet, plan: Plan) -> None:
        self._dataset, self._plan = dataset, plan
        self.epoch = self.start = 0

    def __len__(self) -> int:
        return len(self._plan) - self.start

    def __iter__(self) -> Iterator[_Order]:
        root, files = self._dataset.root, self._dataset.files
        for rows, numbers in self._plan.batches(self.epoch, self.start):
            paths = [root / files[row] for row in rows.tolist()]
            yield _Order(paths, self._dataset.labels[rows], numbers)


class _Reader(Dataset[Any]):
    """Carries out orders."""

    def __init__(self, size: tuple[int, int], augment: Augment | None) -> None:
        self._size, self._augment = size, augment

    def __getitem__(self, order: _Order) -> tuple[Tensor, Tensor] | DataError:
        try:
            return self._images(order.paths, order.numbers), order.labels
        except DataError as error:  # raised by the main process, without the worker's traceback
            return error

    def _images(self, paths: list[Path], numbers: Tensor) -> Tensor:
        windows: list[Window] = [middle] * len(paths)
        rest = self._augment
        if rest is not None and rest.resized_crop:
            # From the full image: the window of a small one would be blurred.
            windows = [partial(crop_box, numbers=drawn) for drawn in numbers.tolist()]
            rest = replace(rest, crop=0, resized_crop=False)
        files = zip(paths, windows, strict=True)
        with quietly():
            images = torch.stack([read_image(path, self._size, seen) for path, seen in files])
        return images if rest is None else apply_numbers(images, rest, numbers)


def _as_it_is(read: Any) -> Any:
    return read


def _leave_interrupts(worker: int) -> None:
    """Ctrl-C and SIGTERM may reach every process; the main one decides, and may want a batch."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
