"""What the loop trains: classification is one task, a few-shot method is another."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from torch import Tensor, nn

from ..convert import filter_orthogonality_penalty
from ..errors import RunError
from .build import Data, build_data, build_model, check_options
from .config import TrainConfig
from .distributed import World
from .evaluate import evaluate
from .ingredients.losses import classification_loss, l1_on_similarity
from .runs.run import Run
from .start import begin_with, check_division, check_source, freeze

__all__ = ["Batches", "Classification", "Task"]


class Batches(Protocol):
    """The batches of this process; each depends only on its epoch and its number."""

    def __len__(self) -> int:
        """The number of batches in an epoch."""

    def epoch(self, number: int = 0, start: int = 0) -> Iterator[tuple[Tensor, ...]]:
        """The batches of epoch ``number``, starting with batch ``start``."""


class Task(Protocol):
    """A model, the data it is trained on, and how it is evaluated."""

    @property
    def model(self) -> nn.Module:
        """The module whose weights are trained and saved."""

    @property
    def batches(self) -> Batches:
        """The training data."""

    @property
    def images(self) -> int:
        """Images per step, over all processes."""

    @property
    def skips_parameters(self) -> bool:
        """Whether the loss of a batch may omit some parameters."""

    def facts(self) -> dict[str, Any]:
        """What a run stores about its data; ``data_copies`` (fingerprints) must not change."""

    def network(self) -> nn.Module:
        """A module that maps a batch to its loss and its error rate (or None)."""

    def freeze(self, frozen: bool) -> None:
        """Train only the similarity, or everything; the model is in training mode."""

    def evaluate(self, world: World) -> dict[str, Any] | None:
        """The result of an evaluation, with ``error``; None if there is nothing to evaluate on."""


class Classification:
    """Classification of images."""

    skips_parameters = False

    def __init__(self, config: TrainConfig, world: World) -> None:
        self.config = config
        source = None if config.from_run is None else Run.open(config.from_run)
        statistics = None if source is None else source.normalisation()
        self.data: Data = build_data(config, world, statistics)
        data = self.data
        if source is not None:
            check_source(source, config, data.in_channels, data.image_size)
            if data.evaluated_on == "validation":
                check_division(source, config)
        check_options(config, data.in_channels, data.image_size)
        self.model = build_model(config, len(data.classes), data.in_channels, data.image_size)
        self.new_classifier = True
        if source is not None:
            self.new_classifier = begin_with(self.model, source, data.classes)
        self._trainable = [p for p in self.model.parameters() if p.requires_grad]
        self.batches: Batches = data.train
        self.images = config.batch_size
        frozen, total = (
            steps(len(data.train)) for steps in (config.frozen_steps, config.total_steps)
        )
        if frozen > total:
            raise RunError(
                f"configuration: expected similarity_epochs no longer than training ({total} "
                f"steps), got {config.similarity_epochs:g} ({frozen} steps). Reduce it, or train "
                f"for longer."
            )

    def facts(self) -> dict[str, Any]:
        return self.data.facts()

    def network(self) -> nn.Module:
        return _Classifier(self.model, self.config)

    def freeze(self, frozen: bool) -> None:
        if frozen:
            freeze(self.model, self.new_classifier)
            return
        for parameter in self._trainable:
            parameter.requires_grad_(True)

    def evaluate(self, world: World) -> dict[str, Any]:
        result = evaluate(self.model, self.data.test, world)
        top5 = {} if result.top5_error is None else {"top5_error": result.top5_error}
        return {"loss": result.loss, "error": result.error, **top5, "images": result.images}


class _Classifier(nn.Module):
    def __init__(self, model: nn.Module, config: TrainConfig) -> None:
        super().__init__()
        self.model, self.config = model, config

    def forward(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        config = self.config
        with l1_on_similarity(self.model, config.similarity_l1) as penalised:
            scores = self.model(images)
            loss = penalised(
                classification_loss(scores, labels, config.label_smoothing, config.loss_floor)
            )
        if config.filter_orthogonality:
            loss = loss + filter_orthogonality_penalty(self.model, config.filter_orthogonality)
        return loss, (scores.detach().argmax(1) != labels).float().mean()
