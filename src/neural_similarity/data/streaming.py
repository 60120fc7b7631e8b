"""Batches of image files, decoded by workers that have no random numbers of their own.

The plan is made in the main process. A worker is told which files to read and by which numbers to
vary them, so that nothing depends on how many workers there are or on who is first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from ..errors import DataError
from .augment import Augment, apply_numbers
from .images import read_image
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
        paths, size = [self._dataset.paths[row] for row in rows], self._dataset.image_size
        if self._augment is None:
            return torch.stack([read_image(path, size) for path in paths])
        if not self._augment.resized_crop:
            images = torch.stack([read_image(path, size) for path in paths])
            return apply_numbers(images, self._augment, numbers)
        windows = zip(paths, numbers.tolist(), strict=True)
        images = torch.stack([read_image(path, size, drawn) for path, drawn in windows])
        return apply_numbers(images, replace(self._augment, crop=0, resized_crop=False), numbers)


def _as_it_is(read: Any) -> Any:
    return read
