"""FEAT: prototypes that adapt to each other by self-attention (Ye et al., 2020).

Paper: "Few-Shot Learning via Embedding Adaptation with Set-to-Set Functions", Han-Jia Ye, Hexiang
Hu, De-Chuan Zhan and Fei Sha, https://arxiv.org/abs/1812.03664.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ....errors import RunError
from ...batches import Images, Tasks, query_labels
from ...network import FewShotNetwork
from ..base import FeatureMethod
from ..registry import register_method
from .proto import squared_distances

__all__ = ["Feat", "SetToSet"]

AUTHORS_FEATURES = 64  # of the network that the temperatures are for


class SetToSet(nn.Module):
    r"""Self-attention with one head over a set of features ``(..., n, D)``.

    .. math:: T(x)_i = \operatorname{LayerNorm}\Big(x_i + W_O \sum_j a_{ij} W_V x_j + b\Big), \qquad
        a_{ij} = \operatorname{softmax}_j \frac{(W_Q x_i)^\top W_K x_j}{\sqrt D}

    Args:
        features: D.
        dropout: of the sum. The attention weights have a dropout of 0.1, unless this is 0.
    """

    def __init__(self, features: int, dropout: float) -> None:
        super().__init__()
        self.query, self.key, self.value = (
            nn.Linear(features, features, bias=False) for _ in range(3)
        )
        self.out = nn.Linear(features, features)
        for layer in (self.query, self.key, self.value, self.out):
            nn.init.xavier_normal_(layer.weight)
        self.norm = nn.LayerNorm(features)
        self.dropout = nn.Dropout(dropout)
        self.attention_dropout = nn.Dropout(min(dropout, 0.1))

    def forward(self, features: Tensor, together: Tensor | None = None) -> Tensor:
        """The features in their context.

        Args:
            features: ``(..., n, D)``.
            together: ``(..., n, n)``, whether j is in the set of i; by default all are in one set.
        """
        products = self.query(features) @ self.key(features).mT / features.shape[-1] ** 0.5
        if together is not None:
            products = products.masked_fill(~together, float("-inf"))
        attention = self.attention_dropout(products.softmax(-1))
        context: Tensor = self.norm(
            features + self.dropout(self.out(attention @ self.value(features)))
        )
        return context


@register_method
@dataclass(frozen=True)
class Feat(FeatureMethod):
    r"""A query belongs to the class with the nearest prototype, after T has adapted prototypes.

    .. math:: s_w = -\frac{64}{D \tau} \|x - T(p)_w\|^2

    where T (:class:`SetToSet`) takes the prototypes p of all classes of the episode: what tells two
    classes apart depends on which two they are. Training adds a regulariser: T takes each class
    alone, with its support images and queries; all images of the episode should be nearest to the
    mean of their own class after T (cross-entropy with temperature τ₂).

    It starts with a network trained on base classes. The defaults are the authors' for 5-way 5-shot
    with four convolutions and D = 64 features; distances are divided by D, so that other networks
    can use the same temperatures. For 1-shot the authors use ``temperature=64, balance=1.0,
    temperature2=16``. They train T at ten times the learning rate of the backbone: the setting
    ``head_rate`` of :class:`FewShotConfig`.

    Args:
        temperature: τ.
        balance: the weight of the regulariser.
        temperature2: τ₂.
        dropout: inside T.
    """

    temperature: float = 32.0
    balance: float = 0.1
    temperature2: float = 64.0
    dropout: float = 0.5

    name: ClassVar[str] = "feat"
    starts_from: ClassVar[str | None] = "finetune"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.temperature > 0 and self.temperature2 > 0):
            raise RunError(
                f"Feat: expected temperatures above 0, got {self.temperature} and "
                f"{self.temperature2}. Distances are divided by them."
            )
        if not self.dropout < 1:
            raise RunError(f"Feat: expected dropout below 1, got {self.dropout}.")

    def head(self, network: FewShotNetwork, num_classes: int) -> nn.Module:
        return SetToSet(network.num_features, self.dropout)

    def feature_scores(self, network: FewShotNetwork, support: Tensor, query: Tensor) -> Tensor:
        prototypes = network.head(support.mean(2))
        return self._scores_by(self.temperature, query, prototypes)

    def loss(self, network: FewShotNetwork, batch: Images | Tasks) -> Tensor:
        if isinstance(batch, Images):
            return super().loss(network, batch)
        support, query = self.embed_episodes(network, batch.support, batch.query)
        scores = self.feature_scores(network, support, query)
        loss = F.cross_entropy(scores.flatten(0, 1), batch.labels.flatten())
        if self.balance == 0:
            return loss
        return loss + self.balance * self.regulariser(network, support, query, batch.labels)

    def regulariser(
        self, network: FewShotNetwork, support: Tensor, query: Tensor, labels: Tensor
    ) -> Tensor:
        """The cross-entropy of all images, from distances to the class means after T.

        Args:
            network: whose head is T.
            support: features ``(B, n_way, n_shot, D)``.
            query: features ``(B, Q, D)``.
            labels: ``(B, Q)``.
        """
        n_way, n_shot = support.shape[1:3]
        own = query_labels(n_way, n_shot, labels.device).expand(len(labels), -1)
        features = torch.cat((support.flatten(1, 2), query), dim=1)
        classes = torch.cat((own, labels), dim=1)
        together = classes.unsqueeze(-1) == classes.unsqueeze(-2)
        members = F.one_hot(classes, n_way).to(features.dtype)
        means = (members / members.sum(1, keepdim=True)).mT @ network.head(features, together)
        scores = self._scores_by(self.temperature2, features, means)
        return F.cross_entropy(scores.flatten(0, 1), classes.flatten())

    def _scores_by(self, temperature: float, features: Tensor, centres: Tensor) -> Tensor:
        scale = AUTHORS_FEATURES / (features.shape[-1] * temperature)
        return -scale * squared_distances(features, centres)
