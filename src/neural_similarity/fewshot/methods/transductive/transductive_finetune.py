"""Transductive finetuning of the whole network, with queries (Dhillon et al., 2020).

Paper: "A Baseline for Few-Shot Image Classification", Guneet S. Dhillon, Pratik Chaudhari, Avinash
Ravichandran and Stefano Soatto, https://arxiv.org/abs/1909.02729.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ....errors import ShapeError
from ...batches import query_labels
from ...inner_loop.call_with import call_with
from ...inner_loop.episode_parameters import BIAS, WEIGHT, Tensors, statistics
from ...network import FewShotNetwork
from ..base import Method
from ..registry import register_method

__all__ = ["TransductiveFinetune"]


@register_method
@dataclass(frozen=True)
class TransductiveFinetune(Method):
    r"""All parameters tuned for correct support labels and confident query labels.

    .. math:: \min_\theta \; \frac1{|S|} \sum_{(x, y) \in S} -\log p_\theta(y \mid x)
        + \frac\lambda{|Q|} \sum_{x \in Q} H(p_\theta(\cdot \mid x))

    The network keeps its base-class classifier. The new classifier takes the output of that one,
    after ReLU and scaled to unit length: its weights start at the mean of each class, scaled to
    unit length, and its biases at zero. Every epoch takes one Adam step down the first sum and then
    one down the second.

    The authors augment the images, and their BatchNorm uses the statistics of the images of each
    step. Here no image is augmented; ``batch_norm="batch"`` is close to their BatchNorm.

    Args:
        epochs: pairs of steps.
        lr: of Adam.
        entropy: λ.
    """

    epochs: int = 25
    lr: float = 5e-5
    entropy: float = 1.0

    name: ClassVar[str] = "transductive_finetune"
    trains_on: ClassVar[Literal["images", "episodes"]] = "images"
    needs_base_classifier: ClassVar[bool] = True
    transductive: ClassVar[bool] = True

    def scores(self, network: FewShotNetwork, support: Tensor, query: Tensor) -> Tensor:
        if not isinstance(network.head, nn.Linear):
            raise ShapeError(
                f"TransductiveFinetune: expected a linear head that classifies base classes, got "
                f"{type(network.head).__name__}. Build the network with this method."
            )
        with statistics(network, self.batch_norm):
            pairs = zip(support, query, strict=True)
            return torch.stack([self._tuned_scores(network, *pair) for pair in pairs])

    @torch.enable_grad()  # evaluation disables gradients
    def _tuned_scores(self, network: FewShotNetwork, support: Tensor, query: Tensor) -> Tensor:
        images = support.flatten(0, 1)
        labels = query_labels(len(support), support.shape[1], support.device)
        tensors = self._first(network, support)
        adam = torch.optim.Adam(tensors.values(), lr=self.lr)
        for _ in range(self.epochs):
            _descend(adam, F.cross_entropy(_scores(network, tensors, images), labels))
            logarithms = _scores(network, tensors, query).log_softmax(1)
            entropy = -(logarithms.exp() * logarithms).sum(1).mean()
            _descend(adam, self.entropy * entropy)
        with torch.no_grad():
            return _scores(network, tensors, query)

    def _first(self, network: FewShotNetwork, support: Tensor) -> Tensors:
        """Copies of all parameters, and the initial classifier, ready for gradients."""
        tensors = {name: p.detach().clone() for name, p in network.named_parameters()}
        with torch.no_grad():
            activations = _activations(network, tensors, support.flatten(0, 1))
        means = activations.unflatten(0, support.shape[:2]).mean(1)
        tensors |= {WEIGHT: F.normalize(means, dim=1), BIAS: means.new_zeros(len(means))}
        return {name: tensor.requires_grad_() for name, tensor in tensors.items()}

    def adapted(self, network: FewShotNetwork, n_way: int) -> int:
        base_classes = network.head.weight.shape[0] if isinstance(network.head, nn.Linear) else 0
        return sum(p.numel() for p in network.parameters()) + n_way * (base_classes + 1)


def _scores(network: FewShotNetwork, tensors: Tensors, images: Tensor) -> Tensor:
    """Scores ``(N, n_way)`` of the network with these tensors in place of its parameters."""
    activations = F.normalize(_activations(network, tensors, images), dim=1)
    return F.linear(activations, tensors[WEIGHT], tensors[BIAS])


def _activations(network: FewShotNetwork, tensors: Tensors, images: Tensor) -> Tensor:
    """The output of the base-class classifier, after ReLU."""
    own = {name: tensor for name, tensor in tensors.items() if name not in (WEIGHT, BIAS)}
    features = call_with(network, own, images)
    return F.linear(features, own["head.weight"], own.get("head.bias")).relu()


def _descend(adam: torch.optim.Adam, loss: Tensor) -> None:
    adam.zero_grad()
    loss.backward()
    adam.step()
