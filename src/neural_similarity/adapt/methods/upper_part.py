"""What methods share that tune the upper part of a network, on maps of the lower part."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call

from ...fewshot.inner_loop.episode_parameters import Tensors
from .base import Adapter
from .cached_trunk import CachedTrunk

__all__ = ["UpperPartAdapter"]

_BATCH = 64


@dataclass(eq=False)
class UpperPartAdapter(Adapter):
    """A method whose network changes in its upper part alone: maps below it are computed once.

    Attributes:
        trunk: the network in two parts.
        start: the parameters that are tuned, by their names in the upper part, before they are.
        maps: ``(2, N, ...)``, what the lower part makes of images and of their mirror images.
    """

    def prepare(self, trunk: CachedTrunk, names: Iterable[str]) -> None:
        """Set the attributes; ``names`` are those of the parameters."""
        self.trunk = trunk
        self.start: Tensors = {
            name: trunk.upper.get_parameter(name).detach().clone() for name in names
        }
        images: list[Tensor] = []
        mirrored: list[Tensor] = []
        for rows in torch.arange(len(self.data)).split(_BATCH):
            pixels = self.data.pixels(rows)
            for view, maps in ((pixels, images), (pixels.flip(3), mirrored)):
                maps.append(trunk.lower(self.data.backbone.preprocessing.normalise(view)))
        self.maps = torch.stack((torch.cat(images), torch.cat(mirrored)))

    def subset(self, rows: Tensor, labels: Tensor) -> Self:
        """The method on the images in these rows, with labels of their own; maps are kept."""
        part = copy.copy(self)
        part.data, part.maps = self.data.subset(rows, labels), self.maps[:, rows]
        return part

    def unit_features(self, tensors: Tensors, maps: Tensor) -> Tensor:
        """Features of unit length, with these parameters in the place of the network's own."""
        own = {f"upper.{name}": tensors[name] for name in self.start}
        features: Tensor = functional_call(self.trunk, own, (maps,))
        return F.normalize(features)
