"""Meta-learned dynamic NSN: what Section 7.2 leaves for the future."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import nn

from ...nn.predictors import TwoLayers
from ..inner_loop.episode_parameters import similarity_names, with_similarity
from ..network import FewShotNetwork
from .meta_static import MetaSimilarity
from .registry import register_method

__all__ = ["MetaDynamic"]


@register_method
@dataclass(frozen=True)
class MetaDynamic(MetaSimilarity):
    """The trained network of the dynamic NSN, whose predictors learn to adapt to an episode.

    A whole predictor has tens of thousands of numbers, too many for a handful of images. By
    default only gain and bias of its last BatchNorm are meta-learned and adapted: for a diagonal,
    how much each tap follows the input, and nine numbers that do not, which are a static
    similarity. So this is the meta-learned static NSN on top of the dynamic one.

    Args:
        part: ``"gains"``, as above; ``"last"``, the last layer with its BatchNorm; ``"all"``.
            Predictors without BatchNorm have no gains: their last layer is taken. Of a predictor
            of your own all is taken.
    """

    part: Literal["gains", "last", "all"] = "gains"

    name: ClassVar[str] = "meta_dynamic"
    similarity: ClassVar[Literal["none", "static", "dynamic"]] = "dynamic"
    starts_from: ClassVar[str | None] = "dynamic"

    def prepare(self, backbone: nn.Module) -> nn.Module:
        return with_similarity(backbone, "dynamic")

    def names(self, network: FewShotNetwork) -> list[str]:
        left_out = {
            id(parameter)
            for module in network.backbone.modules()
            if isinstance(module, TwoLayers) and self.part != "all"
            for parameter in self._left_out(module)
        }
        known = dict(network.backbone.named_parameters())
        names = similarity_names(network.backbone)
        return [name for name in names if id(known[name]) not in left_out]

    def _left_out(self, predictor: TwoLayers) -> list[nn.Parameter]:
        before = [predictor.first, predictor.first_norm]
        if self.part == "gains" and not isinstance(predictor.last_norm, nn.Identity):
            before.append(predictor.last)
        return [parameter for module in before for parameter in module.parameters()]
