"""What meta-learned methods share: training differentiates through gradient steps.

Paper: Finn, Abbeel and Levine (2017), "Model-Agnostic Meta-Learning for Fast Adaptation of Deep
Networks", https://arxiv.org/abs/1703.03400.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ....errors import ShapeError
from ....models.backbone import Backbone
from ....train.distributed import each_alone
from ...batches import Images, Tasks, query_labels
from ...inner_loop.batch_norm import fast_batch_norm
from ...inner_loop.episode_parameters import (
    BIAS,
    WEIGHT,
    Tensors,
    named_parameters,
    scores_with,
    statistics,
)
from ...inner_loop.mean_loss import mean_loss
from ...inner_loop.support_sgd import prototype_classifier
from ...network import FewShotNetwork
from ..base import Method

__all__ = ["MetaLearned"]


@dataclass(frozen=True)
class MetaLearned(Method):
    """Model-agnostic meta-learning over part of a network.

    In an episode some parameters θ of the backbone and a classifier take gradient steps on the
    support set. Training learns their initial values, so that the queries are classified correctly
    after these steps. Tasks are processed one at a time, and only one is in memory: the mean loss
    of B tasks is a sum over tasks, and so is its gradient, which can be computed once. Only θ and
    the classifier are copied for every step; all else is shared by steps and tasks.

    While the backbone is trained, BatchNorm uses the statistics of the current images, whatever
    the policy for test images. With ``"batch"``, the steps use the statistics of the support
    set, and the queries their own, as in the original. All images of a task are in one
    process, so ``sync_batch_norm`` has no effect here.

    Args:
        first_order: leave out second derivatives.
        inner_steps: gradient steps in training.
        inner_lr: the learning rate of these steps.
        start: where the classifier starts: ``"learned"`` in training, for a fixed number of ways;
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
        with each_alone(network), fast_batch_norm(network.backbone):
            return mean_loss(self._losses(network, batch), parameters)

    def _losses(self, network: FewShotNetwork, batch: Tasks) -> Iterator[Tensor]:
        for support, query, labels in zip(*_channels_last(network, batch), strict=True):
            tensors = self.fit(network, support, self.inner_steps, not self.first_order)
            yield F.cross_entropy(scores_with(network, tensors, query), labels)

    def scores(self, network: FewShotNetwork, support: Tensor, query: Tensor) -> Tensor:
        scores = []
        for images, queries in zip(support, query, strict=True):
            with statistics(network, self.batch_norm):
                tensors = self.fit(network, images, self.steps_in_tests, False)
                with torch.no_grad():
                    scores.append(scores_with(network, tensors, queries))
        return torch.stack(scores)

    @property
    def steps_in_tests(self) -> int:
        """Gradient steps on a support set at test time."""
        return self.inner_steps

    @torch.enable_grad()  # evaluation disables gradients
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
        """One step down the loss, on all tensors."""
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
                    f"{self.name}: expected episodes with {getattr(head, 'out_features', 0)} ways, "
                    f"got {n_way}. The initial classifier was learned for that many classes. Use "
                    f"as many ways as in training, or train with start='zero' or 'prototypes'."
                )
            return _apart(head.weight), _apart(head.bias)
        if self.start == "prototypes":
            features = network(support.flatten(0, 1)).unflatten(0, support.shape[:2])
            return prototype_classifier(features)
        zero = support.new_zeros(n_way, network.num_features)
        return zero.requires_grad_(), support.new_zeros(n_way).requires_grad_()


def _channels_last(network: FewShotNetwork, batch: Tasks) -> Tasks:
    """The tasks in channels-last memory layout, which is much faster on a CPU.

    Other backbones may rely on the usual layout.
    """
    if not isinstance(network.backbone, Backbone):
        return batch
    support, query = (images.movedim(-3, -1).contiguous().movedim(-1, -3) for images in batch[:2])
    return Tasks(support, query, batch.labels)


def _apart(parameter: Tensor) -> Tensor:
    """The same values, cut off from the gradient of inner steps, but not from that of training.

    Prototypes are functions of θ too, but a step treats them as independent of θ.
    """
    if parameter.requires_grad:
        return parameter.view_as(parameter)
    return parameter.detach().requires_grad_()
