"""From a configuration to what is trained: the network, its optimiser, the data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import nn

from .. import structures
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
from ..errors import RunError
from ..models import create_model
from ..nn.dynamic_similarity import DynamicSimilarity
from ..nn.inventory import static_similarities
from ..nn.predictors import ConvPredictor, SpherePredictor
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
    "test_images",
]

_Made = TypeVar("_Made")

AUTHORS_DECAY = 5e-3  # of an unconstrained static M, in the authors' code


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
    make = {"sphere": SpherePredictor, "conv": ConvPredictor}[config.predictor]
    options = {"hidden": config.hidden, **config.predictor_options}
    predictor = _with_options("predictor_options", make, options)
    return DynamicSimilarity(structure, predictor, config.shared)


def build_model(config: Settings, num_classes: int, in_channels: int, image_size: int) -> nn.Module:
    """The network, its weights drawn from the seed."""
    torch.manual_seed(config.seed)
    return create_model(
        config.model,
        num_classes,
        similarity=build_similarity(config),
        in_channels=in_channels,
        image_size=image_size,
        **config.options,
    )


def build_optimizer(config: Settings, model: nn.Module) -> torch.optim.Optimizer:
    """SGD or Adam over groups that decay differently: weights, static M, predictors, the rest.

    What is frozen is left out.
    """
    static = {
        parameter
        for module in model.modules()
        for similarity in static_similarities(module).values()
        for parameter in similarity.parameters()
    }
    predicted = set(similarity_parameters(model)) - static
    decay = config.weight_decay
    groups: dict[float, list[nn.Parameter]] = {}
    for parameter in filter(lambda p: p.requires_grad, model.parameters()):
        if parameter in static:
            wanted = _or(config.similarity_decay, _static_decay(config))
        elif parameter.dim() < 2:
            wanted = 0.0
        else:
            wanted = _or(config.predictor_decay, decay) if parameter in predicted else decay
        groups.setdefault(wanted, []).append(parameter)
    parameters = [{"params": group, "weight_decay": wanted} for wanted, group in groups.items()]
    if config.optimizer == "adam":
        return torch.optim.Adam(parameters, lr=config.learning_rate)
    return torch.optim.SGD(parameters, lr=config.learning_rate, momentum=config.momentum)


@dataclass(frozen=True)
class Data:
    """What a run trains and is evaluated on."""

    train: Loader
    test: Loader
    classes: tuple[str, ...]
    in_channels: int
    image_size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    copies: dict[str, str]
    skipped: int

    def facts(self) -> dict[str, Any]:
        """What a run remembers of its data."""
        return {
            "classes": list(self.classes),
            "in_channels": self.in_channels,
            "image_size": self.image_size,
            "mean": list(self.mean),
            "std": list(self.std),
            "data_copies": self.copies,
            "skipped_images": self.skipped,
        }


def build_data(config: TrainConfig, world: World) -> Data:
    """Loaders for training and evaluation, and what the network needs to know of the data."""
    train, test = _image_sets(config)
    side = square(train)
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
        copies={"train": train.copy, "test": test.copy},
        skipped=len(getattr(train, "skipped", ())) + len(getattr(test, "skipped", ())),
    )


def test_images(config: TrainConfig) -> ImageSet:
    """The images a run is evaluated on, and is not trained on."""
    return _image_sets(config)[1]


def square(images: ImageSet) -> int:
    """The side of square images."""
    height, width = images.image_size
    if height != width:
        raise RunError(
            f"train: expected square images, got {height} x {width} in {images.name!r}. Networks "
            f"take one side. Resize them, or set image_size."
        )
    return height


def _image_sets(config: TrainConfig) -> tuple[ImageSet, ImageSet]:
    def load(split: str) -> ImageSet:
        return load_dataset(
            config.data,
            split,
            config.data_dir,
            image_size=config.image_size,
            strict=config.strict,
        )

    train = load("train")
    share = config.validation
    if not share and dataset_info(config.data).kind == "few-shot":
        share = 0.1  # the test classes are others, so new images of the same classes stand in
    if share:
        return split_validation(train, share, config.seed)
    return train, load(dataset_info(config.data).splits[-1])


def _with_options(where: str, make: Callable[..., _Made], options: dict[str, Any]) -> _Made:
    try:
        return make(**options)
    except TypeError as error:
        raise RunError(
            f"configuration: expected {where} that fit, got {options} ({error})."
        ) from error


def _static_decay(config: Settings) -> float:
    return AUTHORS_DECAY if config.structure == "unconstrained" else config.weight_decay


def _or(value: float | None, otherwise: float) -> float:
    return otherwise if value is None else value
