"""Nearest neighbour: a baseline of Table 6, as in Ravi and Larochelle (2017).

Paper: "Optimization as a Model for Few-Shot Learning", https://openreview.net/forum?id=rJY0-Kcll.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch.nn.functional as F
from torch import Tensor

from ...network import FewShotNetwork
from ..base import FeatureMethod
from ..registry import register_method
from .proto import squared_distances

__all__ = ["Nearest"]


@register_method
@dataclass(frozen=True)
class Nearest(FeatureMethod):
    """A network trained on base classes; a query belongs to the class of the nearest support image.

    Args:
        metric: compare by cosine (``"cosine"``) or by distance (``"euclidean"``).
        means: compare with the mean of a class instead of its images; for cosines, the mean of
            unit-length features.
    """

    metric: Literal["cosine", "euclidean"] = "cosine"
    means: bool = False

    name: ClassVar[str] = "nearest"
    trains_on: ClassVar[Literal["images", "episodes"]] = "images"

    def feature_scores(self, network: FewShotNetwork, support: Tensor, query: Tensor) -> Tensor:
        if self.means:
            unit = F.normalize(support, dim=-1) if self.metric == "cosine" else support
            support = unit.mean(2, keepdim=True)
        images = support.flatten(1, 2)
        if self.metric == "cosine":
            near = F.normalize(query, dim=-1) @ F.normalize(images, dim=-1).mT
        else:
            near = -squared_distances(query, images)
        nearest: Tensor = near.unflatten(-1, support.shape[1:3]).amax(-1)
        return nearest
