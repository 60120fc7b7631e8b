"""Batches of image files, decoded by workers that have no random numbers of their own.

The plan is made in the main process. A worker is told which files to read and by which numbers to
vary them, so that nothing depends on how many workers there are or on who is first.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from ..errors import DataError
from .augment import Augment, apply_numbers, crop_box
from .images import Window, middle, quietly, read_image
from .loader import Batch, Plan, Planned, normalise
from .sets import FolderSet

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
        self._order = _Order(plan)
        self._batches: DataLoader[Any] = DataLoader(
            _Files(dataset, augment),
            batch_size=None,
            sampler=self._order,
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
        self._order.epoch, self._order.start = number, start
        for read in self._batches:
            if isinstance(read, DataError):
                raise read
            images, labels = read
            yield normalise(images, self._mean, self._std), labels


class _Order:
    """The plan of one epoch, for the DataLoader to walk through."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.epoch = self.start = 0

    def __len__(self) -> int:
        return len(self._plan) - self.start

    def __iter__(self) -> Iterator[Planned]:
        return self._plan.batches(self.epoch, self.start)


class _Files(Dataset[Any]):
    """A whole batch for every request."""

    def __init__(self, dataset: FolderSet, augment: Augment | None) -> None:
        self._dataset, self._augment = dataset, augment

    def __getitem__(self, planned: Planned) -> tuple[Tensor, Tensor] | DataError:
        rows, numbers = planned
        try:
            return self._images(rows.tolist(), numbers), self._dataset.labels[rows]
        except DataError as error:  # raised by the main process, without the worker's traceback
            return error

    def _images(self, rows: list[int], numbers: Tensor) -> Tensor:
        windows: list[Window] = [middle] * len(rows)
        rest = self._augment
        if rest is not None and rest.resized_crop:
            # From the full image: the window of a small one would be blurred.
            windows = [partial(crop_box, numbers=drawn) for drawn in numbers.tolist()]
            rest = replace(rest, crop=0, resized_crop=False)
        paths, size = [self._dataset.paths[row] for row in rows], self._dataset.image_size
        with quietly():
            read = [read_image(path, size, seen) for path, seen in zip(paths, windows, strict=True)]
        images = torch.stack(read)
        return images if rest is None else apply_numbers(images, rest, numbers)


def _as_it_is(read: Any) -> Any:
    return read


def _leave_interrupts(worker: int) -> None:
    """Ctrl-C reaches every process; the main one decides, and may want a last batch."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
