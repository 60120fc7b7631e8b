"""Relation networks (Sung et al., 2018).

Paper: "Learning to Compare: Relation Network for Few-Shot Learning",
https://arxiv.org/abs/1711.06025.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...batches import Images, Tasks
from ...network import FewShotNetwork
from ..base import FeatureMethod
from ..registry import register_method

__all__ = ["Relation", "RelationHead"]


@register_method
@dataclass(frozen=True)
class Relation(FeatureMethod):
    """A network trained to predict whether a query belongs to a class.

    It takes the two feature maps, concatenated along the channels, and returns a score between 0
    and 1; the target is 1 if they belong together and 0 if not (squared error). The map of a class
    is the mean over its support images: the paper's sum up to a factor, so that the number of
    shots may change.

    The maps should not be too small. ``create_model("cnn4", poolings=2)`` pools twice, as the
    paper's network does.

    Args:
        filters: of the two convolutions.
        hidden: units between the two fully connected layers.
    """

    filters: int = 64
    hidden: int = 8

    name: ClassVar[str] = "relation"

    def head(self, network: FewShotNetwork, num_classes: int) -> nn.Module:
        return RelationHead(network.map_shape, self.filters, self.hidden)

    def feature_scores(self, network: FewShotNetwork, support: Tensor, query: Tensor) -> Tensor:
        classes = support.mean(2).unflatten(-1, network.map_shape)
        head = cast(RelationHead, network.head)
        return head.compare(classes, query.unflatten(-1, network.map_shape))

    def loss(self, network: FewShotNetwork, batch: Images | Tasks) -> Tensor:
        if isinstance(batch, Images):
            return super().loss(network, batch)
        scores = self.scores(network, batch.support, batch.query)
        return F.mse_loss(scores, F.one_hot(batch.labels, scores.shape[-1]).to(scores.dtype))


class RelationHead(nn.Sequential):
    """Two 3×3 convolutions with BatchNorm, ReLU and pooling, two fully connected layers, sigmoid.

    Args:
        map_shape: ``(C, H, W)`` of each of the two maps. A side of one pixel is not pooled.
    """

    def __init__(self, map_shape: tuple[int, int, int], filters: int, hidden: int) -> None:
        channels, high, wide = map_shape
        layers: list[nn.Module] = []
        for width in (2 * channels, filters):
            pool = (min(high, 2), min(wide, 2))
            layers += [
                nn.Conv2d(width, filters, 3, padding=1),
                nn.BatchNorm2d(filters),
                nn.ReLU(inplace=True),
                nn.MaxPool2d(pool),
            ]
            high, wide = high // pool[0], wide // pool[1]
        super().__init__(
            *layers,
            nn.Flatten(),
            nn.Linear(filters * high * wide, hidden),
            nn.ReLU(inplace=True),
            nn.Linear(hidden, 1),
            nn.Sigmoid(),
        )

    def compare(self, classes: Tensor, query: Tensor) -> Tensor:
        """Relations ``(B, Q, n_way)`` of maps ``(B, n_way, C, H, W)`` and ``(B, Q, C, H, W)``.

        The same as calling the head with the two maps of every pair, concatenated. But the first
        convolution is linear: it runs once for every map, and pairs add what it made of each.
        """
        first, *rest = self
        assert isinstance(first, nn.Conv2d)
        n_way, queries = classes.shape[1], query.shape[1]
        if type(first).forward is nn.Conv2d.forward:
            for_class, for_query = first.weight.chunk(2, dim=1)
            ours = F.conv2d(classes.flatten(0, 1), for_class, padding=1)
            theirs = F.conv2d(query.flatten(0, 1), for_query, first.bias, padding=1)
            pairs: Tensor = (
                ours.unflatten(0, (-1, 1, n_way)) + theirs.unflatten(0, (-1, queries, 1))
            ).flatten(0, 2)
        else:  # with a dynamic similarity, which depends on the pair
            both = (classes.repeat(1, queries, 1, 1, 1), query.repeat_interleave(n_way, dim=1))
            pairs = first(torch.cat(both, dim=2).flatten(0, 1))
        for layer in rest:
            pairs = layer(pairs)
        return pairs.reshape(-1, queries, n_way)
