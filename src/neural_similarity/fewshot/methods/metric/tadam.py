"""TADAM: prototypes of features that adapt to the task (Oreshkin et al., 2018).

Paper: "TADAM: Task dependent adaptive metric for improved few-shot learning", Boris N. Oreshkin,
Pau Rodríguez López and Alexandre Lacoste, https://arxiv.org/abs/1805.10123.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ....errors import RunError, ShapeError
from ....nn.inventory import predictor_modules
from ...batches import Images, Tasks, TrainsOn
from ...network import FewShotNetwork
from ..base import FeatureMethod
from ..registry import register_method
from .proto import squared_distances

__all__ = ["Tadam", "TadamHead", "TaskEmbedding", "conditioned", "conditioned_layers"]

Film = tuple[Tensor, Tensor]
"""γ and β of a layer, each ``(B, channels)``: one row per episode."""


@register_method
@dataclass(frozen=True)
class Tadam(FeatureMethod):
    r"""Prototypical networks with a learned scale, in a network conditioned on the task.

    .. math:: s_w = -\alpha \|f(x, \Gamma) - p_w\|^2, \qquad
        p_w = \frac1K \sum_k f(x_{wk}, \Gamma), \qquad
        \Gamma = \frac1{WK} \sum_{wk} f(x_{wk})

    The task embedding Γ is the mean of the prototypes in the network f without conditioning. With
    it, every channel of a layer is scaled and shifted after its BatchNorm, by γ and β that are
    functions of Γ (:class:`TaskEmbedding`). Initially γ is 1 and β is 0.

    A training step uses an episode or, with a probability that decays, images of base classes to
    classify (without conditioning): ``auxiliary`` times ``auxiliary_decay`` to the power of
    ⌊``auxiliary_decays`` t / T⌋ in step t of T.

    Args:
        scale: the initial α.
        film_layers: layers of each network that predicts γ or β.
        film_decay: of the factors of γ − 1 and β; half of it times their squares is in the loss.
        auxiliary: the initial probability of a step with images; 0 trains only on episodes.
        auxiliary_decay: the factor by which the probability decays.
        auxiliary_decays: how often it does so during training.
    """

    scale: float = 1.0
    film_layers: int = 3
    film_decay: float = 0.01
    auxiliary: float = 0.9
    auxiliary_decay: float = 0.9
    auxiliary_decays: int = 20

    name: ClassVar[str] = "tadam"
    trains_on: ClassVar[TrainsOn] = "both"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.auxiliary <= 1 and self.auxiliary_decay <= 1):
            raise RunError(
                f"Tadam: expected auxiliary and auxiliary_decay of at most 1, got {self.auxiliary} "
                f"and {self.auxiliary_decay}. Their product is a probability."
            )

    @property
    def from_features(self) -> bool:
        return False  # the features of an image depend on the task

    def image_share(self, step: int, steps: int) -> float:
        return self.auxiliary * self.auxiliary_decay ** (self.auxiliary_decays * step // steps)

    def head(self, network: FewShotNetwork, num_classes: int) -> nn.Module:
        channels = [norm.num_features for norm in conditioned_layers(network.backbone)]
        embedding = TaskEmbedding(network.num_features, channels, self.film_layers)
        return TadamHead(nn.Linear(network.num_features, num_classes), embedding, self.scale)

    def embed_episodes(
        self, network: FewShotNetwork, support: Tensor, query: Tensor
    ) -> tuple[Tensor, Tensor]:
        generic = self.embed(network, support.flatten(0, 2)).unflatten(0, support.shape[:3])
        films = cast(TadamHead, network.head).embedding(generic.mean(2).mean(1))
        # The episode of each image, in the order in which all of them are embedded.
        numbers = torch.arange(len(support), device=support.device)
        sizes = (support.shape[1:3].numel(), query.shape[1])
        episode = torch.cat([numbers.repeat_interleave(size) for size in sizes])
        rows = [(gamma[episode], beta[episode]) for gamma, beta in films]
        with conditioned(network.backbone, rows):
            return super().embed_episodes(network, support, query)

    def feature_scores(self, network: FewShotNetwork, support: Tensor, query: Tensor) -> Tensor:
        scale = cast(TadamHead, network.head).scale
        return -scale * squared_distances(query, support.mean(2))

    def loss(self, network: FewShotNetwork, batch: Images | Tasks) -> Tensor:
        loss = super().loss(network, batch)
        if isinstance(batch, Images):
            return loss
        return loss + self.film_decay / 2 * cast(TadamHead, network.head).embedding.penalty()


class TaskEmbedding(nn.Module):
    r"""The network from a task embedding Γ to γ and β of every layer.

    .. math:: \gamma = 1 + \gamma_0 g(\Gamma), \qquad \beta = \beta_0 h(\Gamma)

    with a residual network each for g and h, and scalars :math:`\gamma_0, \beta_0` for each layer
    that start at zero and are kept small, so only layers that benefit are conditioned.

    Args:
        features: of Γ.
        channels: of each layer.
        layers: of each residual network.
    """

    def __init__(self, features: int, channels: Sequence[int], layers: int) -> None:
        super().__init__()
        self.gammas, self.betas = (
            nn.ModuleList(_Residual(features, width, layers) for width in channels)
            for _ in range(2)
        )
        self.gamma_factors = nn.Parameter(torch.zeros(len(channels)))
        self.beta_factors = nn.Parameter(torch.zeros(len(channels)))

    def forward(self, tasks: Tensor) -> list[Film]:
        """γ and β of every layer, for task embeddings ``(B, features)``."""
        parts = zip(self.gammas, self.gamma_factors, self.betas, self.beta_factors, strict=True)
        return [(1 + g0 * g(tasks), b0 * h(tasks)) for g, g0, h, b0 in parts]

    def penalty(self) -> Tensor:
        """The sum of squares of all factors."""
        return self.gamma_factors.square().sum() + self.beta_factors.square().sum()


class TadamHead(nn.Module):
    """What TADAM learns besides the backbone.

    Args:
        classifier: of the base classes.
        embedding: from the task to γ and β.
        scale: the initial α.
    """

    def __init__(self, classifier: nn.Module, embedding: TaskEmbedding, scale: float) -> None:
        super().__init__()
        self.classifier, self.embedding = classifier, embedding
        self.scale = nn.Parameter(torch.tensor(scale))

    def forward(self, features: Tensor) -> Tensor:
        """Scores of the base classes."""
        scores: Tensor = self.classifier(features)
        return scores


def conditioned_layers(backbone: nn.Module) -> list[_BatchNorm]:
    """Every BatchNorm of a backbone, except those inside similarity predictors."""
    inner = predictor_modules(backbone)
    norms = [m for m in backbone.modules() if isinstance(m, _BatchNorm) and m not in inner]
    if not norms:
        raise ShapeError(
            "Tadam: expected a backbone with BatchNorm, got one without it. The task scales and "
            "shifts what BatchNorm returns. Use a network such as 'cnn4'."
        )
    return norms


@contextmanager
def conditioned(backbone: nn.Module, films: Sequence[Film]) -> Iterator[None]:
    """Within the block, every BatchNorm of the backbone returns ``γ x + β``.

    Args:
        backbone: any network with BatchNorm.
        films: γ and β of every layer, ``(N, channels)``: one row per image.
    """
    pairs = zip(conditioned_layers(backbone), films, strict=True)
    handles = [norm.register_forward_hook(_film(*film)) for norm, film in pairs]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _film(gamma: Tensor, beta: Tensor) -> Callable[[nn.Module, object, Tensor], Tensor]:
    def changed(module: nn.Module, input: object, output: Tensor) -> Tensor:
        shape = (*gamma.shape, *[1] * (output.dim() - 2))
        return gamma.reshape(shape) * output + beta.reshape(shape)

    return changed


class _Residual(nn.Module):
    """Linear layers with ReLU in between; all but the first add their input."""

    def __init__(self, features: int, width: int, layers: int) -> None:
        super().__init__()
        self.first = nn.Linear(features, width)
        self.rest = nn.ModuleList(nn.Linear(width, width) for _ in range(layers - 1))

    def forward(self, input: Tensor) -> Tensor:
        output: Tensor = self.first(input)
        for layer in self.rest:
            output = output.relu()
            output = layer(output) + output
        return output
