"""Batches of image files, decoded by workers that draw no random numbers themselves.

The main process makes the plan. It sends every worker the files to read and the random numbers that
augment them, so that the result does not depend on the number or the order of workers, and no
worker keeps the names of a million files.
"""

from __future__ import annotations

import atexit
import os
import signal
import weakref
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import active_children
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from ..errors import DataError
from .augment import Augment, Box, DrawBox, apply_numbers
from .image_sets import FolderSet
from .images import Window, middle, quietly, read_image
from .loader import Batch, ColorNoise, Plan, normalise

__all__ = ["FolderLoader"]


class FolderLoader:
    """Reads, augments and normalises batches of image files.

    Workers live as long as the loader and read a few batches ahead.
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
        self._noise = ColorNoise.of(dataset, augment)
        self._orders = _Orders(dataset, plan)
        self._batches: DataLoader[Any] = DataLoader(
            _Reader(dataset.image_size, augment),
            batch_size=None,
            sampler=self._orders,
            num_workers=workers,
            collate_fn=_identity,
            worker_init_fn=_ignore_interrupts,
            persistent_workers=workers > 0,
            # Without it, every epoch would draw from the global generator, and a resumed run would
            # get different random numbers.
            generator=torch.Generator(),
        )
        self._process, self._epochs = os.getpid(), 0
        weakref.finalize(self, _stop_workers, self._batches, self._process)
        _LOADERS.add(self)

    def __len__(self) -> int:
        return len(self._plan)

    def epoch(self, number: int = 0, start: int = 0) -> Iterator[Batch]:
        self._orders.epoch, self._orders.start = number, start
        self._epochs += 1
        own = self._epochs
        for result in self._results():
            if isinstance(result, DataError):
                raise result
            images, labels, numbers = result
            pixels = normalise(images, self._mean, self._std)
            yield self._noise.added(pixels, numbers, self._std), labels
            if own != self._epochs and self._batches.num_workers:
                raise DataError(
                    "loader: expected one epoch at a time, got a new one before the last was "
                    "finished. The workers read for one epoch. Make a loader for each, or use "
                    "workers=0."
                )

    def _results(self) -> Iterator[Any]:
        results = self._start()
        while True:
            try:
                result = next(results, None)
            except RuntimeError as error:
                if "DataLoader worker (pid" not in str(error):
                    raise
                self.close()
                raise DataError(
                    "loader: expected workers that decode images, got one that was killed, "
                    "probably because memory ran out. Use fewer workers, or smaller images."
                ) from error
            if result is None:
                return
            yield result

    def _start(self) -> Iterator[Any]:
        """Start an epoch; the first one starts the workers too.

        If that fails half-way, PyTorch forgets the workers that it has started.
        """
        others = set(active_children())
        try:
            return iter(self._batches)
        except BaseException:
            if getattr(self._batches, "_iterator", None) is None:
                _kill([child for child in active_children() if child not in others])
            raise

    def close(self) -> None:
        """Stop the workers of this process; the next epoch starts new ones."""
        _stop_workers(self._batches, self._process)


def _stop_workers(batches: DataLoader[Any], process: int) -> None:
    """Stop the workers of a DataLoader, if this is the process that started them.

    PyTorch sends SIGTERM to a worker that does not answer within seconds, as on a busy machine. Our
    workers ignore it, and Python would wait for them at its end: they are killed.
    """
    iterator = getattr(batches, "_iterator", None)
    if iterator is not None and process == os.getpid():
        try:
            iterator._shutdown_workers()
        finally:
            _kill(iterator._workers)
            batches._iterator = None


def _kill(workers: Sequence[BaseProcess]) -> None:
    """Kill processes; PyTorch's signal handler may report one of them, once."""
    for _ in range(2):
        with suppress(RuntimeError):
            for worker in workers:
                worker.kill()
            for worker in workers:
                worker.join()


_LOADERS: weakref.WeakSet[FolderLoader] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Stop all workers before the interpreter exits.

    PyTorch leaves that to ``multiprocessing``, which sends SIGTERM and waits: forever, since our
    workers ignore it. What is registered last is called first, so this comes before both.
    """
    for loader in list(_LOADERS):
        loader.close()


@dataclass(frozen=True)
class _Order:
    """The batch that a worker has to read."""

    paths: list[Path]
    labels: Tensor
    numbers: Tensor


class _Orders:
    """The batches of one epoch, as a sampler of the DataLoader."""

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
    """Reads the batch of an order."""

    def __init__(self, size: tuple[int, int], augment: Augment | None) -> None:
        self._size, self._augment = size, augment

    def __getitem__(self, order: _Order) -> tuple[Tensor, Tensor, Tensor] | DataError:
        try:
            return self._images(order.paths, order.numbers), order.labels, order.numbers
        except DataError as error:  # raised by the main process, without the worker's traceback
            return error

    def _images(self, paths: list[Path], numbers: Tensor) -> Tensor:
        windows: list[Window] = [middle] * len(paths)
        rest = self._augment
        if rest is not None and rest.box is not None:
            # Crop the full image: a window of the resized one would be blurred.
            windows = [partial(_window, rest.box, drawn) for drawn in numbers.tolist()]
            rest = replace(rest, crop=0, resized_crop=False, square_crop=False)
        files = zip(paths, windows, strict=True)
        with quietly():
            images = torch.stack([read_image(path, self._size, window) for path, window in files])
        return images if rest is None else apply_numbers(images, rest, numbers)


def _window(box: DrawBox, numbers: Sequence[float], height: int, width: int) -> Box:
    return box(height, width, numbers)


def _identity(batch: Any) -> Any:
    return batch


def _ignore_interrupts(worker: int) -> None:
    """Ctrl-C and SIGTERM may reach every process; the main one decides, and may need a batch."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
