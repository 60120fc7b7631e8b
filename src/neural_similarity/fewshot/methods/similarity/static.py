"""Static NSN (Section 7.2): at test time, learn the similarity and the classifier.

Paper: "Neural Similarity Learning", https://arxiv.org/abs/1910.13003.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor, nn

from ....convert import similarity_parameters
from ...inner_loop.episode_parameters import similarity_names, with_similarity
from ...inner_loop.tune import tuned_scores
from ...network import FewShotNetwork
from ..classifiers.linear_classifiers import TunedClassifier
from ..registry import register_method

__all__ = ["Static"]


@register_method
@dataclass(frozen=True)
class Static(TunedClassifier):
    """A plain network trained on base classes; new classes tune its similarities, not its weights.

    While the backbone is trained, every similarity is fixed at the identity. In an episode all
    weights are fixed, and the similarities (nine parameters per layer if they are diagonal) are
    tuned on the support set together with a new classifier, by the same optimiser.
    """

    name: ClassVar[str] = "static"
    trains_on: ClassVar[Literal["images", "episodes"]] = "images"
    similarity: ClassVar[Literal["none", "static", "dynamic"]] = "static"
    trains_similarity: ClassVar[bool] = False
    episodes_at_a_time: ClassVar[int] = 16  # tuned together

    @property
    def from_features(self) -> bool:
        return False

    def prepare(self, backbone: nn.Module) -> nn.Module:
        with_similarity(backbone, "static")
        for parameter in similarity_parameters(backbone):
            parameter.requires_grad_(False)
        return backbone

    def scores(self, network: FewShotNetwork, support: Tensor, query: Tensor) -> Tensor:
        names = similarity_names(network.backbone)
        return tuned_scores(
            self, network, names, support, query, start=self.start, batch_norm=self.batch_norm
        )

    def adapted(self, network: FewShotNetwork, n_way: int) -> int:
        similarities = sum(p.numel() for p in similarity_parameters(network.backbone))
        return super().adapted(network, n_way) + similarities
