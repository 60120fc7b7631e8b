"""What meta-learned methods have in common: gradient steps that training looks through."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...errors import ShapeError
from ...train.distributed import each_alone
from ..batches import Images, Tasks, query_labels
from ..inner_loop.episode_parameters import (
    BIAS,
    WEIGHT,
    Tensors,
    named_parameters,
    scores_with,
    statistics,
)
from ..inner_loop.mean_loss import mean_one_by_one
from ..inner_loop.support_sgd import prototype_classifier
from ..network import FewShotNetwork
from .base import Method

__all__ = ["MetaLearned"]


@dataclass(frozen=True)
class MetaLearned(Method):
    """Model-agnostic meta-learning (Finn, Abbeel and Levine, 2017) over part of a network.

    In an episode some parameters θ of the backbone and a classifier take gradient steps on the
    support set; training moves their beginning so that the queries are right after these steps.
    Tasks are looked at one by one, and only one is in memory at a time: the mean loss of B tasks is
    that of each, added and divided, and so is its gradient, which can be taken once.
    Only θ and the classifier exist anew for every step; all else is shared by steps and tasks.

    While the backbone is trained, BatchNorm uses the statistics of the images at hand, whichever
    policy applies to test images. With ``"batch"``, those of the support set serve the steps, and
    those of the queries the queries, as in the original. A task has all of its images in one
    process, so ``sync_batch_norm`` changes nothing here.

    Args:
        first_order: leave out second derivatives.
        inner_steps: gradient steps in training.
        inner_lr: their size.
        start: where the classifier begins: ``"learned"``, by training, for one number of ways;
            ``"zero"``; or ``"prototypes"``.
    """

    first_order: bool = False
    inner_steps: int = 5
    inner_lr: float = 0.01
    start: Literal["learned", "zero", "prototypes"] = "learned"

    @abstractmethod
    def names(self, network: FewShotNetwork) -> list[str]:
        """The parameters θ of the backbone that an episode adapts."""

    def head(self, network: FewShotNetwork, num_classes: int) -> nn.Module:
        if self.start == "learned":
            return nn.Linear(network.num_features, num_classes)
        return nn.Identity()

    def loss(self, network: FewShotNetwork, batch: Images | Tasks) -> Tensor:
        if isinstance(batch, Images):
            return super().loss(network, batch)
        parameters = [p for p in network.parameters() if p.requires_grad]
        with each_alone(network):
            return mean_one_by_one(self._losses(network, batch), parameters)

    def _losses(self, network: FewShotNetwork, batch: Tasks) -> Iterator[Tensor]:
        for support, query, labels in zip(*batch, strict=True):
            tensors = self.fit(network, support, self.inner_steps, not self.first_order)
            yield F.cross_entropy(scores_with(network, tensors, query), labels)

    def scores(self, network: FewShotNetwork, support: Tensor, query: Tensor) -> Tensor:
        scores = []
        for shown, asked in zip(support, query, strict=True):
            with statistics(network, self.batch_norm):
                tensors = self.fit(network, shown, self.steps_in_tests, False)
                with torch.no_grad():
                    scores.append(scores_with(network, tensors, asked))
        return torch.stack(scores)

    @property
    def steps_in_tests(self) -> int:
        """Gradient steps on a support set at test time."""
        return self.inner_steps

    @torch.enable_grad()  # evaluation switches gradients off
    def fit(
        self, network: FewShotNetwork, support: Tensor, steps: int, second_order: bool
    ) -> Tensors:
        """θ and the classifier after their steps on a support set ``(n_way, n_shot, C, H, W)``."""
        theta = named_parameters(network, self.names(network))
        tensors = {name: _apart(tensor) for name, tensor in theta.items()}
        tensors |= zip((WEIGHT, BIAS), self._first_classifier(network, support), strict=True)
        n_way, n_shot = support.shape[:2]
        images, labels = support.flatten(0, 1), query_labels(n_way, n_shot, support.device)
        for _ in range(steps):
            tensors = self.advance(network, tensors, images, labels, second_order)
        return tensors

    def advance(
        self,
        network: FewShotNetwork,
        tensors: Tensors,
        images: Tensor,
        labels: Tensor,
        second_order: bool,
    ) -> Tensors:
        """θ and the classifier after one step."""
        scores = scores_with(network, tensors, images)
        return self.step(tensors, F.cross_entropy(scores, labels), second_order)

    def step(self, tensors: Tensors, loss: Tensor, second_order: bool) -> Tensors:
        """One step of all tensors down the loss."""
        slopes = torch.autograd.grad(
            loss, list(tensors.values()), create_graph=second_order, materialize_grads=True
        )
        return {
            name: tensor - self.inner_lr * slope
            for (name, tensor), slope in zip(tensors.items(), slopes, strict=True)
        }

    def adapted(self, network: FewShotNetwork, n_way: int) -> int:
        theta = named_parameters(network, self.names(network)).values()
        return sum(p.numel() for p in theta) + n_way * (network.num_features + 1)

    def _first_classifier(self, network: FewShotNetwork, support: Tensor) -> tuple[Tensor, Tensor]:
        n_way = len(support)
        if self.start == "learned":
            head = network.head
            if not isinstance(head, nn.Linear) or head.out_features != n_way:
                raise ShapeError(
                    f"{self.name}: expected episodes of {getattr(head, 'out_features', 0)} ways, "
                    f"got {n_way}. The beginning of the classifier was learned for that many. Use "
                    f"as many ways as in training, or train with start='zero' or 'prototypes'."
                )
            return _apart(head.weight), _apart(head.bias)
        if self.start == "prototypes":
            features = network(support.flatten(0, 1)).unflatten(0, support.shape[:2])
            return prototype_classifier(features)
        zero = support.new_zeros(n_way, network.num_features)
        return zero.requires_grad_(), support.new_zeros(n_way).requires_grad_()


def _apart(parameter: Tensor) -> Tensor:
    """The same numbers, at which a gradient step ends and training does not.

    Prototypes are functions of θ, too, but a step takes them for numbers of their own.
    """
    if parameter.requires_grad:
        return parameter.view_as(parameter)
    return parameter.detach().requires_grad_()
