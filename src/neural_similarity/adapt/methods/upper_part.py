"""What the methods that tune the upper part of a network share."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...convert.merge import merged_copy
from ...convert.switch import check_switched_on
from ...fewshot.inner_loop.call_with import call_with
from ...fewshot.inner_loop.episode_parameters import Tensors
from ..backbones.extractor import FeatureExtractor
from .base import Adapter
from .cached_trunk import CachedTrunk

__all__ = ["UpperPartAdapter", "network_to_tune"]

_BATCH = 64


@dataclass(eq=False)
class UpperPartAdapter(Adapter):
    """A method that changes only the upper part of a network: maps below it are computed once.

    Attributes:
        trunk: the network in two parts.
        start: the parameters that are tuned, by their names, with their initial values.
        maps: ``(2, N, ...)``, the lower part's output for images and for their mirror images.
    """

    def prepare(self, trunk: CachedTrunk, names: Iterable[str]) -> None:
        """Set the attributes; ``names`` are those of parameters in the upper part."""
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
        """The method on the images in these rows, with new labels; the maps are reused."""
        part = copy.copy(self)
        part.data, part.maps = self.data.subset(rows, labels), self.maps[:, rows]
        return part

    def whole_with(self, learned: Tensors) -> nn.Module:
        """A copy of the whole network with the learned parameters."""
        module = copy.deepcopy(self.trunk.whole)
        with torch.no_grad():
            for name in self.start:
                module.get_parameter(name).copy_(learned[name])
        return module

    @torch.no_grad()
    def features_after(self, learned: Tensors) -> Tensor:
        return torch.cat([self.unit_features(learned, part) for part in self.maps[0].split(_BATCH)])

    def unit_features(self, tensors: Tensors, maps: Tensor) -> Tensor:
        """Features of unit length, with these parameters in place of the network's."""
        own = {f"upper.{name}": tensors[name] for name in self.start}
        features: Tensor = call_with(self.trunk, own, maps)
        return F.normalize(features)


def network_to_tune(backbone: FeatureExtractor) -> nn.Module:
    """A copy of its network to tune, in evaluation mode; static similarities are merged."""
    check_switched_on("adapt", backbone.module)
    return merged_copy(backbone.module).eval().requires_grad_(False)
