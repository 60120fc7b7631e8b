"""Method ``blocks``: all weights of the last blocks and a classifier, by gradient descent.

It needs some images: with five of each class it is worse than a classifier alone, with ten it is
better (``python -m experiments.adapt``, the way "last blocks"). Its settings were chosen there, on
classes that serve for choices.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from math import cos, pi

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...fewshot.inner_loop.episode_parameters import BIAS, WEIGHT, Tensors
from ...fewshot.methods.classifiers.linear import balanced
from .. import linear_heads as heads
from ..backbones.extractor import FeatureExtractor
from .adam import Adam
from .base import AdaptedNetwork
from .cached_trunk import CachedTrunk
from .upper_part import UpperPartAdapter

__all__ = ["BlocksAdapter", "last_blocks"]

_CONVOLUTIONS = 4  # the last ones, and what comes with them: BatchNorm, and a block as a whole
_EPOCHS, _BATCH, _RATE = 20, 16, 3e-4


@dataclass(eq=False)
class BlocksAdapter(UpperPartAdapter):
    """The weights of the last blocks and a classifier on unit features.

    It learns from images and from their mirror images. BatchNorm keeps its statistics.

    Args:
        data: the images and their features.
    """

    def __post_init__(self) -> None:
        trunk = last_blocks(self.data.backbone)
        self.prepare(trunk, [name for name, _ in trunk.upper.named_parameters()])

    def fit(self, rows: Tensor) -> Tensors:
        labels, n_way = self.data.labels[rows], self.data.n_way
        weights = balanced(torch.ones_like(rows)[:, None], labels, n_way)[:, 0]
        features = self.data.features
        tensors = {name: tensor.clone() for name, tensor in self.start.items()}
        tensors[WEIGHT] = features.new_zeros(n_way, features.shape[1])
        tensors[BIAS] = features.new_zeros(n_way)
        leaves = [tensor.requires_grad_() for tensor in tensors.values()]
        optimiser, generator = Adam(leaves, [_RATE] * len(leaves)), torch.Generator().manual_seed(0)
        steps, step = _EPOCHS * -(-len(rows) // _BATCH), 0
        for _ in range(_EPOCHS):
            for batch in torch.randperm(len(rows), generator=generator).split(_BATCH):
                views = torch.randint(2, batch.shape, generator=generator)
                with torch.enable_grad():
                    scores = self._scores(tensors, self.maps[views, rows[batch]])
                    losses = F.cross_entropy(scores, labels[batch], reduction="none")
                    loss = (losses * weights[batch].to(losses)).mean()
                    slopes = torch.autograd.grad(loss, leaves)
                optimiser.step(slopes, share=(1 + cos(pi * step / steps)) / 2)
                step += 1
        return {name: tensor.detach() for name, tensor in tensors.items()}

    @torch.no_grad()
    def scores(self, learned: Tensors, rows: Tensor) -> Tensor:
        parts = [self._scores(learned, self.maps[0, part]) for part in rows.split(_BATCH)]
        return torch.cat(parts)

    def network(self, learned: Tensors) -> AdaptedNetwork:
        module = copy.deepcopy(self.trunk.whole)
        module.load_state_dict({name: learned[name] for name in self.start}, strict=False)
        classifier = heads.linear(learned[WEIGHT] * self._length, learned[BIAS])
        return AdaptedNetwork(module, classifier, True).eval().requires_grad_(False)

    @property
    def _length(self) -> float:
        """Of the features that the classifier learns from: their numbers are about one."""
        return float(self.data.features.shape[1] ** 0.5)

    def _scores(self, tensors: Tensors, maps: Tensor) -> Tensor:
        features = self._length * self.unit_features(tensors, maps)
        return F.linear(features, tensors[WEIGHT], tensors[BIAS])


def last_blocks(backbone: FeatureExtractor) -> CachedTrunk:
    """The backbone in two parts: the upper one has its last convolutions."""
    module = copy.deepcopy(backbone.module).eval().requires_grad_(False)
    names = [name for name, part in module.named_modules() if isinstance(part, nn.Conv2d)]
    return CachedTrunk(module, names[-_CONVOLUTIONS:], backbone.image_shape)
