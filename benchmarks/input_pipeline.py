"""What input costs: preparing a batch, compared with the training step that uses it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from unittest import mock

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import neural_similarity as ns
from neural_similarity.data import Augment, FolderSet, Loader, MemorySet, load_dataset, train_loader

from .networks import BATCH, SIDE, channels_last, training_step
from .timing import Timing, race

#: Batches of an epoch from files: more than workers prepare in advance, so that they must keep up.
BATCHES = 6
#: Width and height of the photographs; the height is that of mini-ImageNet.
PHOTO = (112, 84)


def run(rounds: int) -> dict[str, list[Timing]]:
    torch.manual_seed(0)
    model = channels_last(ns.create_model("cnn9", image_size=SIDE))
    with tempfile.TemporaryDirectory() as scratch:
        with mock.patch.dict(os.environ, NEURAL_SIMILARITY_CACHE=scratch):
            photos = folder(Path(scratch) / "photos")
        return {
            f"a batch from memory and a CNN-9 step, batch {BATCH}, {SIDE}×{SIDE}": race(
                memory_contestants(model), rounds
            ),
            f"{BATCHES} steps fed from JPEG files of {PHOTO[0]}×{PHOTO[1]}, the same network": race(
                folder_contestants(model, photos), rounds
            ),
        }


def memory_contestants(model: nn.Module) -> dict[str, Callable[[], object]]:
    dataset = noise()
    variations = {
        "as it is": Augment(crop=0, flip=False),
        "crop and flip": Augment(),
        "resized crop and flip": Augment(resized_crop=True),
    }
    contestants: dict[str, Callable[[], object]] = {"training step": plain_step(model)}
    for name, augment in variations.items():
        batches = endless(loader(dataset, augment))
        contestants[f"batch, {name}"] = partial(next, batches)
    return contestants


def folder_contestants(model: nn.Module, photos: FolderSet) -> dict[str, Callable[[], object]]:
    step = plain_step(model)
    contestants: dict[str, Callable[[], object]] = {
        "steps, batch at hand": lambda: [step() for _ in range(BATCHES)]
    }
    for workers in (0, 1, 2):
        files = loader(photos, Augment(resized_crop=True), workers)
        contestants[f"steps, {workers} worker(s)"] = partial(train, model, files)
    return contestants


def noise() -> MemorySet:
    """As many images as CIFAR-10 has, of its size."""
    images = torch.randint(256, (50_000, 3, SIDE, SIDE), dtype=torch.uint8)
    return MemorySet.of("noise", images, torch.randint(10, (50_000,)), "0123456789")


def loader(dataset: MemorySet | FolderSet, augment: Augment, workers: int = 0) -> Loader:
    mean, std = (0.5,) * 3, (0.25,) * 3
    return train_loader(
        dataset, BATCH, augment=augment, mean=mean, std=std, seed=0, workers=workers
    )


def endless(batches: Loader) -> Iterator[tuple[Tensor, Tensor]]:
    for epoch in count():
        yield from batches.epoch(epoch)


def plain_step(model: nn.Module) -> Callable[[], None]:
    images = torch.randn(BATCH, 3, SIDE, SIDE).to(memory_format=torch.channels_last)
    return training_step(model, images, torch.randint(10, (BATCH,)))


def train(model: nn.Module, batches: Loader) -> None:
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for images, labels in batches.epoch(0):
        optimiser.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimiser.step()


def folder(root: Path) -> FolderSet:
    """Smooth random photographs, ten classes of them."""
    from PIL import Image

    random = np.random.default_rng(0)
    for number in range(BATCH * BATCHES):
        path = root / "train" / str(number % 10) / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        coarse = Image.fromarray(random.integers(256, size=(12, 16, 3), dtype=np.uint8))
        coarse.resize(PHOTO, Image.Resampling.BICUBIC).save(path, quality=90)
    photos = load_dataset("imagefolder", "train", root, image_size=SIDE)
    assert isinstance(photos, FolderSet)
    return photos
