"""Build the network, its optimiser and its data from a configuration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import nn

from .. import _check, structures
from .._memory import check_fits
from ..convert import similarity_parameters
from ..data import (
    ImageSet,
    Loader,
    dataset_info,
    eval_loader,
    load_dataset,
    split_validation,
    train_loader,
)
from ..errors import DataError, RunError
from ..models import create_model
from ..nn.dynamic_similarity import DynamicSimilarity
from ..nn.inventory import static_similarities
from ..nn.predictors import PREDICTORS, PatchPredictor
from ..nn.static import StaticSimilarity
from .config import TrainConfig
from .distributed import World
from .settings import Settings

__all__ = [
    "Data",
    "build_data",
    "build_model",
    "build_optimizer",
    "build_similarity",
    "training_copy",
    "unseen_images",
    "unseen_splits",
]

_Result = TypeVar("_Result")

AUTHORS_DECAY = 5e-3  # weight decay of an unconstrained static M in the authors' code


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
        return StaticSimilarity(structure, config.scope)  # type: ignore[arg-type]
    make = {**PREDICTORS, "patch": PatchPredictor}[config.predictor]
    size = "channels" if config.predictor == "pair" else "hidden"
    default = {} if config.hidden is None else {size: config.hidden}
    predictor = _with_options("predictor_options", make, {**default, **config.predictor_options})
    return DynamicSimilarity(
        structure,
        predictor,
        config.shared,
        over=config.over,  # type: ignore[arg-type]
        similarity_groups=config.similarity_groups,
    )


def build_model(config: Settings, num_classes: int, in_channels: int, image_size: int) -> nn.Module:
    """The network; its initial weights depend on the seed."""
    torch.manual_seed(config.seed)
    fixed = {"in_channels": in_channels, "image_size": image_size}
    try:
        return create_model(
            config.model,
            num_classes,
            similarity=build_similarity(config),
            **{**config.options, **fixed},
        )
    except TypeError as error:
        raise RunError(
            f"configuration: expected options that {config.model!r} takes and structure_options "
            f"that {config.structure!r} takes, got {config.options} and {config.structure_options} "
            f"({error})."
        ) from error


def build_optimizer(config: Settings, model: nn.Module) -> torch.optim.Optimizer:
    """SGD or Adam, with a weight decay for each group: weights, static M, predictors, the rest.

    Frozen parameters are left out.
    """
    similarities = [s for module in model.modules() for s in static_similarities(module).values()]
    static = {parameter for similarity in similarities for parameter in similarity.parameters()}
    undecayed = {
        parameter
        for similarity in similarities
        for name, parameter in similarity.numbers.items()
        if not similarity.structure.decays(name)
    }
    predictors = set(similarity_parameters(model)) - static
    groups: dict[float, list[nn.Parameter]] = {}
    for parameter in filter(lambda p: p.requires_grad, model.parameters()):
        if parameter in undecayed or (parameter.dim() < 2 and parameter not in static):
            decay = 0.0
        elif parameter in static:
            decay = _or(config.similarity_decay, _static_decay(config))
        elif parameter in predictors:
            decay = _or(config.predictor_decay, config.weight_decay)
        else:
            decay = config.weight_decay
        groups.setdefault(decay, []).append(parameter)
    parameters = [{"params": group, "weight_decay": decay} for decay, group in groups.items()]
    if config.optimizer == "adam":
        return torch.optim.Adam(parameters, lr=config.learning_rate)
    return torch.optim.SGD(parameters, lr=config.learning_rate, momentum=config.momentum)


@dataclass(frozen=True)
class Data:
    """The images that a run trains and is evaluated on."""

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


def build_data(config: TrainConfig, world: World) -> Data:
    """Loaders for training and evaluation, and what the network needs to know about the data."""
    train, test = _image_sets(config)
    side = square(train)
    batch = min(config.batch_size, max(len(train), len(test))) * train.in_channels
    advice = "Use a smaller batch_size or image_size"
    check_fits("train", "a batch of images", 4 * batch * side**2, advice)
    mean, std = train.statistics()
    ranks = {"rank": world.rank, "world_size": world.size, "workers": config.workers}
    return Data(
        train=train_loader(
            train,
            config.batch_size,
            augment=dataset_info(config.data).augment,
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


def unseen_images(config: TrainConfig, split: str | None = None) -> ImageSet:
    """Images of the trained classes that a run is not trained on: test or validation."""
    splits = unseen_splits(config)
    split = splits[-1] if split is None else split
    _check.known_name("run", "split", split, splits)
    if split == "validation":
        return split_validation(_load(config, "train"), _validation(config), config.seed)[1]
    return _load(config, dataset_info(config.data).splits[-1])


def unseen_splits(config: TrainConfig) -> list[str]:
    """The splits of unseen images; the first is used for evaluation during training."""
    return ["validation"] * bool(_validation(config)) + ["test"] * _has_test(config)


def training_copy(config: TrainConfig) -> str | None:
    """The fingerprint of the training images on this machine; None if there are none."""
    try:
        return _load(config, "train").fingerprint
    except DataError:
        return None


def square(images: ImageSet) -> int:
    """The side of the images, which must be square."""
    height, width = images.image_size
    if height != width:
        raise RunError(
            f"train: expected square images, got {height} x {width} in {images.name!r}. Networks "
            f"have one image_size. Resize the images, or set image_size."
        )
    return height


def _image_sets(config: TrainConfig) -> tuple[ImageSet, ImageSet]:
    train = _load(config, "train")
    if _validation(config):
        train, test = split_validation(train, _validation(config), config.seed)
    else:
        test = unseen_images(config)
    if not len(test):
        raise DataError(
            f"train: expected images of {config.data!r} to evaluate on, got none. Every class "
            f"needs at least two images."
        )
    return train, test


def _load(config: TrainConfig, split: str) -> ImageSet:
    return load_dataset(
        config.data, split, config.data_dir, image_size=config.image_size, strict=config.strict
    )


def _has_test(config: TrainConfig) -> bool:
    """Whether the test split has the trained classes; in few-shot sets it has others."""
    return dataset_info(config.data).kind == "classification"


def _validation(config: TrainConfig) -> float:
    """The share of training images that is held out; never zero if there is no test split."""
    return config.validation or (0.0 if _has_test(config) else 0.1)


def _with_options(where: str, make: Callable[..., _Result], options: dict[str, Any]) -> _Result:
    try:
        return make(**options)
    except TypeError as error:
        raise RunError(
            f"configuration: expected valid {where}, got {options} ({error})."
        ) from error


def _static_decay(config: Settings) -> float:
    return AUTHORS_DECAY if config.structure == "unconstrained" else config.weight_decay


def _or(value: float | None, otherwise: float) -> float:
    return otherwise if value is None else value
