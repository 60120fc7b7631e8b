"""Images of base, validation and test classes, and training episodes of base classes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import prod
from statistics import fmean

import torch
from torch import Tensor

from .._memory import check_fits
from ..data import ImageSet, MemorySet, dataset_info, load_dataset
from ..data.augment import Augment, apply_numbers, draw_numbers, no_augment
from ..data.episodes import Episodes
from ..data.images import in_threads, middle, read_image
from ..data.loader import Loader, generator_of, normalise
from ..errors import DataError
from ..train.build import square
from ..train.distributed import World
from .batches import as_tasks
from .config import FewShotConfig

__all__ = [
    "EpisodeLoader",
    "MixedLoader",
    "base_augment",
    "base_classes",
    "check_apart",
    "load_split",
]

_ENDLESS = 2**53  # an episode depends only on its number, so their count costs nothing


def load_split(config: FewShotConfig, split: str) -> MemorySet:
    """The square images of a split, in memory."""
    dataset = load_dataset(
        config.data, split, config.data_dir, image_size=config.image_size, strict=config.strict
    )
    square(dataset)
    return _in_memory(dataset)


def base_classes(config: FewShotConfig) -> tuple[MemorySet, MemorySet | None]:
    """Images of the base classes, and of the validation classes if any are left."""
    splits = dataset_info(config.data).splits
    base = load_split(config, "train")
    if config.base == "train":
        return base, load_split(config, "val") if "val" in splits else None
    if "val" not in splits:
        raise DataError(
            f"few-shot: expected validation classes for base 'train+val', got none in "
            f"{config.data!r}. It has only {' and '.join(splits)}. Use base 'train'."
        )
    return _joined(base, load_split(config, "val")), None


def base_augment(config: FewShotConfig) -> Augment:
    """How base images are augmented."""
    return dataset_info(config.data).augment if config.augment else no_augment


def check_apart(data: str, trained: tuple[str, ...], tested: tuple[str, ...]) -> None:
    """Raise if a test class was trained on."""
    both = sorted(set(trained) & set(tested))
    if both:
        names = ", ".join(map(repr, both[:3])) + (", ..." if len(both) > 3 else "")
        raise DataError(
            f"few-shot: expected test classes that were not trained on, got {names} in both parts "
            f"of {data!r}. A few-shot method is tested on new classes. Use a data set such as "
            f"'glyphs', or a backbone that was trained on other classes."
        )


@dataclass(frozen=True)
class EpisodeLoader:
    """Training episodes as images; a step depends only on the seed and its own number.

    Each process gets its part of the episodes of a step.
    """

    dataset: MemorySet
    config: FewShotConfig
    mean: tuple[float, ...]
    std: tuple[float, ...]
    world: World

    def __post_init__(self) -> None:
        if self.config.tasks % self.world.size:
            raise DataError(
                f"few-shot: expected tasks that can be divided among {self.world.size} processes, "
                f"got {self.config.tasks}. Every process takes an equal part. Change tasks, or use "
                f"fewer processes."
            )
        self._episodes()

    def __len__(self) -> int:
        return self.config.epoch_steps

    def epoch(self, number: int = 0, start: int = 0) -> Iterator[tuple[Tensor, ...]]:
        episodes, config = self._episodes(), self.config
        share = config.tasks // self.world.size
        mean, std, augment = (
            torch.tensor(self.mean),
            torch.tensor(self.std),
            base_augment(config),
        )
        for batch in range(start, len(self)):
            step = number * len(self) + batch
            first = step * config.tasks + self.world.rank * share
            drawn = episodes.batch(first, first + share)
            rows = torch.cat((drawn.support, drawn.query), dim=2)
            # Random numbers for all processes; this one uses its part.
            size = rows[0].numel()
            numbers = draw_numbers(
                size * config.tasks, generator_of(config.seed, "episode augment", step)
            )[size * self.world.rank * share :][: size * share]
            images = apply_numbers(self.dataset.images[rows.flatten()], augment, numbers)
            images = normalise(images, mean, std).unflatten(0, rows.shape)
            n_shot = drawn.support.shape[2]
            yield as_tasks(images[:, :, :n_shot], images[:, :, n_shot:])

    @property
    def images(self) -> int:
        """Images per step, over all processes."""
        n_way, n_shot, n_query = self.config.training_episode()
        return prod((self.config.tasks, n_way, n_shot + n_query))

    def _episodes(self) -> Episodes:
        n_way, n_shot, n_query = self.config.training_episode()
        labels, seed = self.dataset.labels, self.config.seed
        return Episodes(labels, n_way, n_shot, n_query, seed, _ENDLESS)


@dataclass(frozen=True)
class MixedLoader:
    """Batches of images and of episodes, at random: each step has one of the two.

    Which one depends only on the seed and the step number, and so does the batch: it is the one
    that this step would have if all steps had images, or all had episodes.

    Args:
        image_loader: batches of images.
        episodes: batches of episodes.
        image_share: the probability of images, given the step number and the number of steps.
    """

    image_loader: Loader
    episodes: EpisodeLoader
    image_share: Callable[[int, int], float]

    def __len__(self) -> int:
        return len(self.episodes)

    def epoch(self, number: int = 0, start: int = 0) -> Iterator[tuple[Tensor, ...]]:
        for batch in range(start, len(self)):
            step = number * len(self) + batch
            if self.has_images(step):
                yield next(self.image_loader.epoch(*divmod(step, len(self.image_loader))))
            else:
                yield next(self.episodes.epoch(number, batch))

    def has_images(self, step: int) -> bool:
        """Whether a step has images."""
        generator = generator_of(self.episodes.config.seed, "images or episodes", step)
        number = torch.rand((), generator=generator).item()
        return number < self.image_share(step, self._steps)

    @property
    def images(self) -> int:
        """Expected images per step, over all processes."""
        share = fmean(self.image_share(step, self._steps) for step in range(self._steps))
        return round(share * self.episodes.config.batch_size + (1 - share) * self.episodes.images)

    @property
    def _steps(self) -> int:
        return max(self.episodes.config.total_steps(len(self)), 1)


def _in_memory(dataset: ImageSet) -> MemorySet:
    if isinstance(dataset, MemorySet):
        return dataset
    size = dataset.image_size
    total = len(dataset) * dataset.in_channels * prod(size)
    check_fits(f"few-shot: {dataset.name}", "the images", total, "Use a smaller image_size")
    read = in_threads(
        lambda path: read_image(path, size, middle), dataset.paths, f"decoding {dataset.name}"
    )
    return MemorySet(
        dataset.name, torch.stack(list(read)), dataset.labels, dataset.classes, dataset.fingerprint
    )


def _joined(one: MemorySet, other: MemorySet) -> MemorySet:
    return replace(
        one,
        images=torch.cat((one.images, other.images)),
        labels=torch.cat((one.labels, other.labels + one.num_classes)),
        classes=one.classes + other.classes,
        fingerprint=one.fingerprint
        if one.fingerprint == other.fingerprint
        else f"{one.fingerprint}+{other.fingerprint}",
    )
