"""What the loop trains: classification is one task, few-shot methods are another."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import torch.nn.functional as F
from torch import Tensor, nn

from ..convert import filter_orthogonality_penalty
from .build import Data, build_data, build_model
from .config import TrainConfig
from .distributed import World
from .evaluate import evaluate

__all__ = ["Batches", "Classification", "Task"]


class Batches(Protocol):
    """Batches that depend on the numbers of epoch and batch alone, for this process."""

    def __len__(self) -> int:
        """Batches in an epoch."""

    def epoch(self, number: int = 0, start: int = 0) -> Iterator[tuple[Tensor, ...]]:
        """The batches of epoch ``number`` from batch ``start`` on."""


class Task(Protocol):
    """What is trained, on what, and how it is measured."""

    @property
    def model(self) -> nn.Module:
        """What has the weights that are trained and kept."""

    @property
    def batches(self) -> Batches:
        """What it is trained on."""

    @property
    def images(self) -> int:
        """How many images a step looks at, over all processes."""

    def facts(self) -> dict[str, Any]:
        """What a run remembers of its data; ``data_copies`` must stay the same."""

    def network(self) -> nn.Module:
        """The model in a shell: takes a batch, gives its loss and the share told wrong, or None."""

    def evaluate(self, world: World) -> dict[str, Any] | None:
        """What evaluation finds, ``error`` among it; None if there is nothing to evaluate on."""


class Classification:
    """Images of known classes."""

    def __init__(self, config: TrainConfig, world: World) -> None:
        self.config = config
        self.data: Data = build_data(config, world)
        data = self.data
        self.model = build_model(config, len(data.classes), data.in_channels, data.image_size)
        self.batches: Batches = data.train
        self.images = config.batch_size

    def facts(self) -> dict[str, Any]:
        return self.data.facts()

    def network(self) -> nn.Module:
        return _Classifier(self.model, self.config)

    def evaluate(self, world: World) -> dict[str, Any]:
        result = evaluate(self.model, self.data.test, world)
        return {"loss": result.loss, "error": result.error, "images": result.images}


class _Classifier(nn.Module):
    def __init__(self, model: nn.Module, config: TrainConfig) -> None:
        super().__init__()
        self.model, self.config = model, config

    def forward(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        scores, config = self.model(images), self.config
        loss = F.cross_entropy(scores, labels, label_smoothing=config.label_smoothing)
        if config.filter_orthogonality:
            loss = loss + filter_orthogonality_penalty(self.model, config.filter_orthogonality)
        return loss, (scores.detach().argmax(1) != labels).float().mean()
