"""Build the network, its optimiser and its data from a configuration."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

import neural_similarity

from .. import _check, structures
from .._memory import check_fits
from ..data import (
    Augment,
    ImageSet,
    Loader,
    dataset_info,
    eval_loader,
    load_dataset,
    no_augment,
    split_validation,
    train_loader,
)
from ..errors import DataError, RunError
from ..models import create_model
from ..nn.dynamic import DynamicSimilarity
from ..nn.predictors import predictor_class
from ..nn.static import StaticSimilarity
from .config import TrainConfig
from .distributed import World
from .ingredients.decay import weight_decays
from .ingredients.norms import set_norms
from .settings import Settings

__all__ = [
    "Data",
    "build_data",
    "build_model",
    "build_optimizer",
    "build_similarity",
    "check_options",
    "find_classifier",
    "held_out_share",
    "keep_random_numbers",
    "training_augment",
    "training_copy",
    "unseen_images",
    "unseen_splits",
]

_LOGGER = logging.getLogger("neural_similarity")
_MOST_NAMES = 5

_Result = TypeVar("_Result")
Statistics = tuple[tuple[float, ...], tuple[float, ...]]


def build_similarity(config: Settings) -> StaticSimilarity | DynamicSimilarity | None:
    """The similarity that a configuration describes."""
    kind = config.similarity_kind()
    if kind == "none":
        return None
    structure = _with_options(
        "structure_options",
        lambda **options: structures.from_config({"name": config.structure, **options}),
        config.structure_options,
    )
    if kind == "static":
        return StaticSimilarity(
            structure,
            config.scope,  # type: ignore[arg-type]
            target_modules=config.layers,
        )
    make = predictor_class("sphere" if config.predictor == "patch" else config.predictor)
    size = "channels" if config.predictor == "pair" else "hidden"
    default = {} if config.hidden is None else {size: config.hidden}
    predictor = _with_options("predictor_options", make, {**default, **config.predictor_options})
    return DynamicSimilarity(
        structure,
        predictor,
        config.shared,
        target_modules=config.layers,
        over=config.over,  # type: ignore[arg-type]
        similarity_groups=config.similarity_groups,
    )


def build_model(config: Settings, num_classes: int, in_channels: int, image_size: int) -> nn.Module:
    """The network; its initial weights depend on the seed."""
    torch.manual_seed(config.seed)
    fixed = {"in_channels": in_channels, "image_size": image_size}
    try:
        model = create_model(
            config.model,
            num_classes,
            similarity=build_similarity(config),
            **{**config.options, **fixed},
        )
    except TypeError as error:
        if _is_from_elsewhere(error):
            raise
        raise RunError(
            f"configuration: expected options that {config.model!r} takes and structure_options "
            f"that {config.structure!r} takes, got {config.options} and {config.structure_options} "
            f"({error})."
        ) from error
    set_norms(model, config)
    return model


def find_classifier(where: str, name: str, model: nn.Module) -> nn.Module:
    """The network's last layer, from features to scores, which must be known to replace it."""
    get_classifier = getattr(model, "get_classifier", None)
    if not callable(get_classifier):
        raise RunError(
            f"{where}: expected a network with get_classifier(), which returns its last layer, got "
            f"{name!r} without it. Give the network this method."
        )
    classifier: nn.Module = get_classifier()
    return classifier


def check_options(config: Settings, in_channels: int, image_size: int) -> None:
    """Raise if options contradict the data; networks that exist were built without them."""
    fixed = {"in_channels": in_channels, "image_size": image_size}
    for name, value in fixed.items():
        if config.options.get(name, value) != value:
            raise RunError(
                f"configuration: expected options without {name}, which is {value} for images of "
                f"{config.data!r}, got {name}={config.options[name]!r}. Leave it out"
                + ("; the setting image_size resizes images." if name == "image_size" else ".")
            )


def keep_random_numbers() -> AbstractContextManager[None]:
    """Around building a network whose weights are then read: the caller's generators stay."""
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    return torch.random.fork_rng(devices)


def build_optimizer(config: Settings, model: nn.Module) -> torch.optim.Optimizer:
    """SGD or Adam, with a group for each weight decay and learning rate.

    A group's ``lr_factor`` is its learning rate as a multiple of the schedule's. Frozen parameters
    are left out.
    """
    factors = config.lr_factors(model)
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for parameter, decay in weight_decays(config, model).items():
        groups.setdefault((decay, factors.get(parameter, 1.0)), []).append(parameter)
    rate = config.learning_rate
    parameters = [
        {"params": group, "weight_decay": decay, "lr_factor": factor, "lr": factor * rate}
        for (decay, factor), group in groups.items()
    ]
    if config.optimizer == "adam":
        return torch.optim.Adam(parameters)
    return torch.optim.SGD(parameters, momentum=config.momentum)


@dataclass(frozen=True)
class Data:
    """The images that a run is trained and evaluated on."""

    train: Loader
    test: Loader
    classes: tuple[str, ...]
    in_channels: int
    image_size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    copies: dict[str, str]
    evaluated_on: str
    skipped: int

    def facts(self) -> dict[str, Any]:
        """What a run stores about its data."""
        return {
            "classes": list(self.classes),
            "in_channels": self.in_channels,
            "image_size": self.image_size,
            "mean": list(self.mean),
            "std": list(self.std),
            "data_copies": self.copies,
            "evaluated_on": self.evaluated_on,
            "skipped_images": self.skipped,
        }


def build_data(config: TrainConfig, world: World, statistics: Statistics | None = None) -> Data:
    """Loaders for training and evaluation, and what the network needs to know about the data.

    ``statistics`` are the pixels' mean and standard deviation, if not those of the settings.
    """
    train, test = _image_sets(config)
    side = square(train)
    batch = min(config.batch_size, max(len(train), len(test))) * train.in_channels
    advice = "Use a smaller batch_size or image_size"
    check_fits("train", "a batch of images", 4 * batch * side**2, advice)
    if statistics is None or len(statistics[0]) != train.in_channels:  # which check_source refuses
        statistics = _statistics(config, train)
    mean, std = statistics
    ranks = {"rank": world.rank, "world_size": world.size, "workers": config.workers}
    return Data(
        train=train_loader(
            train,
            config.batch_size,
            augment=training_augment(config),
            mean=mean,
            std=std,
            seed=config.seed,
            **ranks,
        ),
        test=eval_loader(test, config.batch_size, mean=mean, std=std, **ranks),
        classes=train.classes,
        in_channels=train.in_channels,
        image_size=side,
        mean=mean,
        std=std,
        copies={"train": train.fingerprint, "test": test.fingerprint},
        evaluated_on=unseen_splits(config)[0],
        # The splits of one folder skip the same files.
        skipped=len({bad.path for part in (train, test) for bad in getattr(part, "skipped", ())}),
    )


def training_augment(config: TrainConfig) -> Augment:
    """How the training images are augmented."""
    augment = {
        "usual": dataset_info(config.data).augment,
        "none": no_augment,
        "flip": replace(no_augment, flip=True),
        "krizhevsky": Augment(crop=0, square_crop=True, color_noise=0.1),
    }[config.augmentation]
    noise = augment.color_noise if config.color_noise is None else config.color_noise
    return replace(augment, padding=config.padding, color_noise=noise)  # type: ignore[arg-type]


def unseen_images(config: TrainConfig, split: str | None = None) -> ImageSet:
    """Images of the trained classes that the run does not train on: test or validation."""
    splits = unseen_splits(config)
    split = splits[-1] if split is None else split
    _check.known_name("run", "split", split, splits)
    if split == "validation":
        return split_validation(_load(config, "train"), held_out_share(config), config.seed)[1]
    return _load(config, dataset_info(config.data).splits[-1])


def unseen_splits(config: TrainConfig) -> list[str]:
    """The splits of unseen images; the first is used for evaluation during training."""
    return ["validation"] * bool(held_out_share(config)) + ["test"] * _has_test(config)


def training_copy(config: TrainConfig) -> str | None:
    """The fingerprint of the training images on this machine; None if there are none."""
    try:
        return _load(config, "train").fingerprint
    except DataError:
        return None


def square(images: ImageSet) -> int:
    """The side of the images, which must be square; raises otherwise."""
    height, width = images.image_size
    if height != width:
        raise RunError(
            f"train: expected square images, got {height} x {width} in {images.name!r}. Networks "
            f"have one image_size. Resize the images, or set image_size."
        )
    return height


def _image_sets(config: TrainConfig) -> tuple[ImageSet, ImageSet]:
    train = _load(config, "train")
    _check_classes(config, train)
    if held_out_share(config):
        train, test = split_validation(train, held_out_share(config), config.seed)
    else:
        test = unseen_images(config)
    if test.classes != train.classes:
        raise DataError(
            f"train: expected the same classes in the training and test images of "
            f"{config.data!r}, got {len(train.classes)} and {len(test.classes)}, which are "
            f"different or in another order. Their labels would mean different things."
        )
    if not len(test):
        raise DataError(
            f"train: expected images of {config.data!r} to evaluate on, got none. Every class "
            f"needs at least two images."
        )
    return train, test


def _check_classes(config: TrainConfig, train: ImageSet) -> None:
    """Raise unless two classes have images; warn about classes that have none."""
    counts = torch.bincount(train.labels, minlength=train.num_classes).tolist()
    empty = [name for name, count in zip(train.classes, counts, strict=True) if not count]
    if train.num_classes - len(empty) < 2:
        with_images = ", ".join(repr(name) for name in train.classes if name not in empty)
        raise DataError(
            f"train: expected images of at least two classes in {config.data!r}, got "
            f"{with_images or 'none'}. Give each class a folder of its own."
        )
    if empty:
        _LOGGER.warning(
            "neural_similarity: %s: %d class(es) have no images to train on: %s",
            config.data, len(empty), ", ".join(map(repr, empty[:_MOST_NAMES])),
        )  # fmt: skip


def _load(config: TrainConfig, split: str) -> ImageSet:
    return load_dataset(
        config.data, split, config.data_dir, image_size=config.image_size, strict=config.strict
    )


def _has_test(config: TrainConfig) -> bool:
    """Whether the test split has the trained classes; in few-shot data sets it has others."""
    return dataset_info(config.data).kind == "classification"


def held_out_share(config: TrainConfig) -> float:
    """The share of training images that is held out; never zero if there is no test split."""
    return config.validation or (0.0 if _has_test(config) else 0.1)


def _with_options(where: str, make: Callable[..., _Result], options: dict[str, Any]) -> _Result:
    try:
        return make(**options)
    except TypeError as error:
        if _is_from_elsewhere(error):
            raise
        raise RunError(
            f"configuration: expected valid {where}, got {options} ({error})."
        ) from error


def _is_from_elsewhere(error: TypeError) -> bool:
    """Whether other code than ours and PyTorch's raised it: then its author needs the traceback."""
    homes = [Path(module.__file__ or "").parent for module in (neural_similarity, torch)]
    last = traceback.extract_tb(error.__traceback__)[-1]
    return not any(Path(last.filename).is_relative_to(home) for home in homes)


def _statistics(config: TrainConfig, images: ImageSet) -> Statistics:
    """Mean and standard deviation that normalise pixels from 0 to 1."""
    if config.pixels == "normalised":
        return images.statistics()
    # The authors' networks take raw pixels from 0 to 255; those of the table with
    # self-attention first compute (pixel - 127.5) / 128.
    mean, std = (0.0, 1 / 255) if config.pixels == "raw" else (0.5, 128 / 255)
    return (mean,) * images.in_channels, (std,) * images.in_channels
