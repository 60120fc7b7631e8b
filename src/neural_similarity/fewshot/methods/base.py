"""What a few-shot method is: one loop trains all of them, one loop evaluates all of them.

Shapes, throughout: B episodes of ``n_way`` classes with ``n_shot`` support images and Q queries.
Support images lie class by class, ``(B, n_way, n_shot, C, H, W)``: their place is their label.
Queries are a plain list, ``(B, Q, C, H, W)``, and come without labels wherever scores are made.

Training, in outline::

    learner = method.build(backbone, num_classes, image_shape).train()
    loss = method.loss(learner, Images(images, labels))  # method.trains_on == "images"
    loss = method.loss(learner, as_tasks(support, query))  # method.trains_on == "episodes"

Evaluation, in outline, under ``torch.no_grad()`` (what adapts by gradients switches them on)::

    learner.eval()
    if method.from_features:  # embed every image once
        features = method.embed(learner, images)
        scores = method.feature_scores(learner, features[support], features[query].flatten(1, 2))
    else:
        scores = method.scores(learner, images[support], images[query].flatten(1, 2))
    correct = scores.argmax(-1) == query_labels(n_way, n_query)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, get_args, get_type_hints

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ... import _check
from ...errors import RunError
from ..batches import BatchNorm, Images, Tasks
from ..network import Learner, batch_statistics

__all__ = ["FeatureMethod", "Method"]


@dataclass(frozen=True)
class Method(ABC):
    """A way to learn from few images: a frozen set of hyperparameters, and pure functions.

    All state is in the learner that :meth:`build` makes. Fields are a method's options; whole
    numbers among them are at least one, and others at least zero.

    Args:
        batch_norm: which statistics BatchNorm uses on test images: ``"running"``, those of
            training, so that every query is classified on its own (inductive); ``"batch"``, those
            of the episode's images, so that queries tell of each other (transductive).
    """

    batch_norm: BatchNorm = "running"

    name: ClassVar[str]
    trains_on: ClassVar[Literal["images", "episodes"]] = "episodes"
    similarity: ClassVar[Literal["none", "static", "dynamic"]] = "none"
    """What ``create_model`` should put on the backbone."""
    starts_from: ClassVar[str | None] = None
    """The method whose trained backbone is handed to :meth:`build`; None begins from scratch."""

    def __post_init__(self) -> None:
        for name, kind in get_type_hints(type(self)).items():
            if name in {field.name for field in fields(self)}:
                _check_option(type(self).__name__, name, getattr(self, name), kind)

    @property
    def from_features(self) -> bool:
        """Whether ``embed`` and ``feature_scores`` do the same as ``scores``, only faster."""
        return False

    def build(
        self, backbone: nn.Module, num_classes: int, image_shape: tuple[int, int, int]
    ) -> Learner:
        """The learner: the backbone without its classifier, and what the method puts on it.

        Args:
            backbone: any network of ``create_model``, or any module that returns features. It
                becomes part of the learner, and loses its classifier (``get_classifier``).
            num_classes: base classes, or ways of the training episodes.
            image_shape: ``(C, H, W)``.
        """
        learner = Learner(self.prepare(backbone), image_shape)
        like = next((p for p in backbone.parameters() if p.is_floating_point()), torch.empty(0))
        learner.head = self.head(learner, num_classes).to(like.device, like.dtype)
        return learner

    def prepare(self, backbone: nn.Module) -> nn.Module:
        """The backbone with what the method needs on it."""
        return backbone

    def head(self, learner: Learner, num_classes: int) -> nn.Module:
        """What has state besides the backbone: here, a classifier if there are labels to learn."""
        if self.trains_on == "images":
            return nn.Linear(learner.num_features, num_classes)
        return nn.Identity()

    def loss(self, learner: Learner, batch: Images | Tasks) -> Tensor:
        """What training minimises: cross-entropy of base classes, or of the queries' scores."""
        if isinstance(batch, Images):
            return F.cross_entropy(learner.head(learner(batch.images)), batch.labels)
        scores = self.scores(learner, batch.support, batch.query)
        return F.cross_entropy(scores.flatten(0, 1), batch.labels.flatten())

    @abstractmethod
    def scores(self, learner: Learner, support: Tensor, query: Tensor) -> Tensor:
        """How much each query looks like each class, ``(B, Q, n_way)``; the learner stays as is."""

    def adapted(self, learner: Learner, n_way: int) -> int:
        """How many numbers are fitted to the support set of an episode."""
        return 0


@dataclass(frozen=True)
class FeatureMethod(Method):
    """A method that reads nothing of an image but its features, which no episode changes."""

    @property
    def from_features(self) -> bool:
        return self.batch_norm == "running"

    def embed(self, learner: Learner, images: Tensor) -> Tensor:
        """Features ``(N, D)`` of images ``(N, C, H, W)``, for :meth:`feature_scores`."""
        features: Tensor = learner(images)
        return features

    @abstractmethod
    def feature_scores(self, learner: Learner, support: Tensor, query: Tensor) -> Tensor:
        """Scores ``(B, Q, n_way)`` from features ``(B, n_way, n_shot, D)`` and ``(B, Q, D)``."""

    def scores(self, learner: Learner, support: Tensor, query: Tensor) -> Tensor:
        if learner.training or self.batch_norm == "running":
            return self._scores(learner, support, query)
        with batch_statistics(learner):
            pairs = zip(support.split(1), query.split(1), strict=True)
            return torch.cat([self._scores(learner, *pair) for pair in pairs])

    def _scores(self, learner: Learner, support: Tensor, query: Tensor) -> Tensor:
        # Support and queries go together, so that BatchNorm sees all of them while it learns.
        images = torch.cat((support.flatten(0, 2), query.flatten(0, 1)))
        features = self.embed(learner, images)
        apart = features.split((len(images) - query.shape[:2].numel(), query.shape[:2].numel()))
        shown = apart[0].unflatten(0, support.shape[:3])
        return self.feature_scores(learner, shown, apart[1].unflatten(0, query.shape[:2]))


def _check_option(where: str, name: str, value: object, kind: Any) -> None:
    words = get_args(kind)
    if words and all(isinstance(word, str) for word in words):
        return _check.known_name(where, name, value, words)
    kinds = words or (kind,)
    if value is None and type(None) in kinds:
        return None
    if bool in kinds:
        if not isinstance(value, bool):
            raise RunError(f"{where}: expected {name} to be true or false, got {value!r}.")
    elif int in kinds:
        _check.whole_numbers(where, **{name: value})
    elif not isinstance(value, int | float) or isinstance(value, bool) or not value >= 0:
        raise RunError(f"{where}: expected {name} to be a number of at least 0, got {value!r}.")
    return None
