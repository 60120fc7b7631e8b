"""Images to draw small classification tasks from.

A pool is a folder with a folder of images per class. Ten of the birds serve to choose settings,
such as learning rates; results are reported on the other ten. mini-ImageNet has validation and
test classes for that. There are only ten cars: five of them were used for both.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from neural_similarity.adapt import (
    FeatureExtractor,
    TrainingImages,
    embed_images,
    open_cache,
)
from neural_similarity.errors import DataError

__all__ = [
    "TESTED", "Draw", "Pool", "add_pool_options", "draws", "embed_pool", "mini_imagenet",
    "photographs",
]  # fmt: skip

TESTED = 20
"""Images of a class that a task is tested on."""


@dataclass(frozen=True)
class Pool:
    """Images of many classes.

    Attributes:
        name: for tables.
        classes: the names of the classes.
        images: the files of every class.
    """

    name: str
    classes: tuple[str, ...]
    images: tuple[tuple[Path, ...], ...]


class Draw(NamedTuple):
    """A task: rows of a pool, and which of them are learned from."""

    rows: Tensor
    labels: Tensor
    """From 0 to ``n_way − 1``."""
    n_train: int
    """The first of the rows are the training images."""


def photographs(folder: Path, name: str, chosen: slice) -> Pool:
    """Some classes of a folder of photographs, in the order of their names."""
    classes = sorted(path.name for path in folder.iterdir() if path.is_dir())[chosen]
    files = tuple(tuple(sorted((folder / one).iterdir())) for one in classes)
    return Pool(name, tuple(classes), files)


def mini_imagenet(folder: Path, split: str, per_class: int = 60) -> Pool:
    """The first images of every class of a split, from its csv file."""
    table = folder / f"{split}.csv"
    if not table.is_file():
        raise DataError(f"{table}: expected a table of mini-ImageNet, got no file with this name.")
    by_class: dict[str, list[Path]] = {}
    with table.open(encoding="utf-8") as lines:
        for line in csv.DictReader(lines):
            by_class.setdefault(line["label"], []).append(folder / "images" / line["filename"])
    files = tuple(tuple(by_class[one][:per_class]) for one in sorted(by_class))
    return Pool(f"mini-ImageNet, {split}", tuple(sorted(by_class)), files)


def embed_pool(backbone: FeatureExtractor, pool: Pool) -> TrainingImages:
    """The features of all images of a pool."""
    images = [file for files in pool.images for file in files]
    counts = torch.tensor([len(files) for files in pool.images])
    labels = torch.arange(len(counts)).repeat_interleave(counts)

    def report(done: int, total: int) -> None:
        print(f"\r{pool.name}: {done:,} of {total:,} images", end="", flush=True)

    data = embed_images(backbone, images, labels, len(counts), report, open_cache(backbone))
    print()
    return data


def draws(data: TrainingImages, n_way: int, n_shot: int, tasks: range) -> Iterator[Draw]:
    """Tasks of random classes and images, by number; the same for every method.

    At most :data:`TESTED` images of every class are tested.
    """
    for seed in tasks:
        generator = torch.Generator().manual_seed(1000 * n_shot + seed)
        classes = torch.randperm(data.n_way, generator=generator)[:n_way]
        train, test = [], []
        for one in classes.tolist():
            rows = (data.labels == one).nonzero()[:, 0]
            rows = rows[torch.randperm(len(rows), generator=generator)]
            train.append(rows[:n_shot])
            test.append(rows[n_shot : n_shot + TESTED])
        ways = [torch.full((len(part),), way % n_way) for way, part in enumerate(train + test)]
        yield Draw(torch.cat(train + test), torch.cat(ways), n_way * n_shot)


def add_pool_options(parser: argparse.ArgumentParser) -> None:
    """Where the images are, what reads them, and how many tasks are drawn."""
    parser.add_argument("--photos", type=Path, help="folder with birds/CLASS and cars/CLASS")
    parser.add_argument("--mini", type=Path, help="folder of mini-ImageNet, with images and tables")
    parser.add_argument("--backbone", default="efficientnet_lite0", help="as in nsl adapt")
    parser.add_argument("--image-size", type=int, help="side of the images it reads")
    parser.add_argument("--draws", type=int, default=100, help="tasks per number (default 100)")
