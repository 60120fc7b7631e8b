"""What a few-shot method is: one loop trains all of them, one loop evaluates all of them.

Shapes, throughout: B episodes of ``n_way`` classes with ``n_shot`` support images and Q queries.
Support images are sorted by class, ``(B, n_way, n_shot, C, H, W)``: their index is their label.
Queries are a flat list, ``(B, Q, C, H, W)``, and have no labels where scores are computed.

Training, in outline::

    network = method.build(backbone, num_classes, image_shape).train()
    loss = method.loss(network, Images(images, labels))  # method.trains_on == "images"
    loss = method.loss(network, as_tasks(support, query))  # method.trains_on == "episodes"

With ``trains_on == "both"`` every step has either the one or the other, at random;
``method.image_share`` is the probability of images.

Evaluation, in outline, under ``torch.no_grad()`` (methods that need gradients enable them)::

    network.eval()
    if method.from_features:  # embed every image once
        features = method.embed(network, images)
        scores = method.feature_scores(network, features[support], features[query].flatten(1, 2))
    else:
        scores = method.scores(network, images[support], images[query].flatten(1, 2))
    correct = scores.argmax(-1) == query_labels(n_way, n_query)

A method gets all queries of an episode at once, for speed. An inductive method must not use this:
its scores of a query are the same whatever the other queries are, which evaluation checks. A method
that does use it must set ``transductive``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from math import inf
from typing import Any, ClassVar, Literal, get_args, get_type_hints

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ... import _check
from ...errors import RunError
from ..batches import BatchNorm, Images, Tasks, TrainsOn
from ..network import FewShotNetwork, batch_statistics

__all__ = ["FeatureMethod", "Method"]


@dataclass(frozen=True)
class Method(ABC):
    """A way to learn from few images: a frozen set of hyperparameters, and pure functions.

    All state is in the network that :meth:`build` returns. The fields are the method's options;
    integer options must be at least one, other numbers at least zero.

    Args:
        batch_norm: which statistics BatchNorm uses on test images: ``"running"``, those of
            training, so that every query is classified independently (inductive); ``"batch"``,
            those of the episode's images, so that queries influence each other (transductive).
    """

    batch_norm: BatchNorm = "running"

    name: ClassVar[str]
    trains_on: ClassVar[TrainsOn] = "episodes"
    similarity: ClassVar[Literal["none", "static", "dynamic"]] = "none"
    """Which similarity ``create_model`` should give the backbone."""
    trains_similarity: ClassVar[bool] = True
    """Whether training on base classes changes the backbone's similarity, if it has one."""
    starts_from: ClassVar[str | None] = None
    """The method whose trained backbone :meth:`build` takes; None starts from scratch."""
    needs_base_classifier: ClassVar[bool] = False
    """Whether scores use the base-class classifier, so that it is kept with the backbone."""
    transductive: ClassVar[bool] = False
    """Whether the method looks at all queries of an episode before it classifies any of them."""
    episodes_at_a_time: ClassVar[int] = 4
    """How many episodes :meth:`scores` gets in a test, which bounds its memory."""

    def __post_init__(self) -> None:
        for name, kind in get_type_hints(type(self)).items():
            if name in {field.name for field in fields(self)}:
                _check_option(type(self).__name__, name, getattr(self, name), kind)

    @property
    def inference(self) -> Literal["inductive", "transductive"]:
        """Whether queries are classified independently, or influence each other."""
        together = self.transductive or self.batch_norm == "batch"
        return "transductive" if together else "inductive"

    @property
    def needs_base_mean(self) -> bool:
        """Whether scores use ``network.base_mean``, the mean feature of the base images."""
        return False

    @property
    def from_features(self) -> bool:
        """Whether ``embed`` and ``feature_scores`` compute the same as ``scores``, but faster."""
        return False

    def build(
        self, backbone: nn.Module, num_classes: int, image_shape: tuple[int, int, int]
    ) -> FewShotNetwork:
        """The network: the backbone without its classifier, and the method's head.

        Args:
            backbone: any network of ``create_model``, or any module that returns features. It
                becomes part of the network; its classifier (``get_classifier``) is removed.
            num_classes: base classes; or ways of the training episodes, for a method that trains
                only on episodes.
            image_shape: ``(C, H, W)``.
        """
        network = FewShotNetwork(self.prepare(backbone), image_shape)
        like = next((p for p in backbone.parameters() if p.is_floating_point()), torch.empty(0))
        network.head = self.head(network, num_classes).to(like.device, like.dtype)
        return network

    def prepare(self, backbone: nn.Module) -> nn.Module:
        """The backbone with the similarity that the method needs."""
        return backbone

    def head(self, network: FewShotNetwork, num_classes: int) -> nn.Module:
        """The part besides the backbone: by default a classifier, if training uses labels."""
        if self.trains_on == "images":
            return nn.Linear(network.num_features, num_classes)
        return nn.Identity()

    def image_share(self, step: int, steps: int) -> float:
        """The probability that a step of training has images, if ``trains_on`` is both.

        Args:
            step: the index of the step, from 0.
            steps: the number of training steps.
        """
        return {"images": 1.0, "episodes": 0.0, "both": 0.5}[self.trains_on]

    def loss(self, network: FewShotNetwork, batch: Images | Tasks) -> Tensor:
        """The training loss: cross-entropy of the base classes, or of the queries' scores."""
        if isinstance(batch, Images):
            return F.cross_entropy(network.head(network(batch.images)), batch.labels)
        scores = self.scores(network, batch.support, batch.query)
        return F.cross_entropy(scores.flatten(0, 1), batch.labels.flatten())

    @abstractmethod
    def scores(self, network: FewShotNetwork, support: Tensor, query: Tensor) -> Tensor:
        """Scores ``(B, Q, n_way)`` of every query for every class; the network does not change."""

    def adapted(self, network: FewShotNetwork, n_way: int) -> int:
        """How many parameters are fitted to the support set of an episode."""
        return 0


@dataclass(frozen=True)
class FeatureMethod(Method):
    """A method that uses only the features of an image, which are the same in every episode."""

    @property
    def from_features(self) -> bool:
        return self.batch_norm == "running"

    def embed(self, network: FewShotNetwork, images: Tensor) -> Tensor:
        """Features ``(N, D)`` of images ``(N, C, H, W)``, for :meth:`feature_scores`."""
        features: Tensor = network(images)
        return features

    @abstractmethod
    def feature_scores(self, network: FewShotNetwork, support: Tensor, query: Tensor) -> Tensor:
        """Scores ``(B, Q, n_way)`` from features ``(B, n_way, n_shot, D)`` and ``(B, Q, D)``."""

    def scores(self, network: FewShotNetwork, support: Tensor, query: Tensor) -> Tensor:
        if network.training or self.batch_norm == "running":
            return self._scores(network, support, query)
        with batch_statistics(network):
            pairs = zip(support.split(1), query.split(1), strict=True)
            return torch.cat([self._scores(network, *pair) for pair in pairs])

    def embed_episodes(
        self, network: FewShotNetwork, support: Tensor, query: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Features of support images and of queries, as :meth:`feature_scores` takes them."""
        # Support and queries form one batch, so BatchNorm sees all of them in training.
        images = torch.cat((support.flatten(0, 2), query.flatten(0, 1)))
        features = self.embed(network, images)
        supports, queries = features.tensor_split([support.shape[:3].numel()])
        return supports.unflatten(0, support.shape[:3]), queries.unflatten(0, query.shape[:2])

    def _scores(self, network: FewShotNetwork, support: Tensor, query: Tensor) -> Tensor:
        return self.feature_scores(network, *self.embed_episodes(network, support, query))


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
    elif not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < inf:
        raise RunError(
            f"{where}: expected {name} to be a finite number of at least 0, got {value!r}."
        )
    return None
