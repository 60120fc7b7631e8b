"""Meta-learned dynamic NSN, which Section 7.2 leaves for future work.

Paper: "Neural Similarity Learning", https://arxiv.org/abs/1910.13003.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import nn

from ....nn.predictors import PredictorNetwork
from ...inner_loop.episode_parameters import similarity_names, with_similarity
from ...network import FewShotNetwork
from ..registry import register_method
from .meta_static import MetaSimilarity

__all__ = ["MetaDynamic"]


@register_method
@dataclass(frozen=True)
class MetaDynamic(MetaSimilarity):
    """The trained network of the dynamic NSN, whose predictors learn to adapt to an episode.

    A whole predictor has tens of thousands of parameters, too many for a handful of images. By
    default only the gains and biases of its last BatchNorm are meta-learned and adapted: for a
    diagonal, nine gains, which set how much each tap follows the input, and nine biases, which are
    a static similarity. So this is the meta-learned static NSN on top of the dynamic one.

    Args:
        part: ``"gains"``, as above; ``"last"``, the last layer with its BatchNorm; ``"all"``. In
            predictors without BatchNorm, ``"gains"`` means the last layer. For a predictor class
            that is not from this library, all parameters are adapted.
    """

    part: Literal["gains", "last", "all"] = "gains"

    name: ClassVar[str] = "meta_dynamic"
    similarity: ClassVar[Literal["none", "static", "dynamic"]] = "dynamic"
    starts_from: ClassVar[str | None] = "dynamic"

    def prepare(self, backbone: nn.Module) -> nn.Module:
        return with_similarity(backbone, "dynamic")

    def names(self, network: FewShotNetwork) -> list[str]:
        fixed = {
            id(parameter)
            for module in network.backbone.modules()
            if isinstance(module, PredictorNetwork) and self.part != "all"
            for layer in module.early_layers(gains=self.part == "gains")
            for parameter in layer.parameters()
        }
        parameters = dict(network.backbone.named_parameters())
        names = similarity_names(network.backbone)
        return [name for name in names if id(parameters[name]) not in fixed]
