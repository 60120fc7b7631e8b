"""Finetuning: the baseline of Table 6, which is the Baseline of Chen et al. (2019).

Paper: "A Closer Look at Few-shot Classification",
https://arxiv.org/abs/1904.04232.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from ...inner_loop.tune import tuned_scores
from ...network import FewShotNetwork
from ..classifiers.linear_classifiers import TunedClassifier
from ..registry import register_method

__all__ = ["Finetune"]


@register_method
@dataclass(frozen=True)
class Finetune(TunedClassifier):
    """A network trained on base classes; new classes get a new linear classifier.

    Args:
        tune: ``"classifier"``, or ``"all"``: also all parameters of the backbone.
    """

    tune: Literal["classifier", "all"] = "classifier"

    name: ClassVar[str] = "finetune"
    trains_on: ClassVar[Literal["images", "episodes"]] = "images"

    @property
    def from_features(self) -> bool:
        return self.tune == "classifier" and super().from_features

    def scores(self, network: FewShotNetwork, support: Tensor, query: Tensor) -> Tensor:
        if self.tune == "classifier":
            return super().scores(network, support, query)
        names = [name for name, _ in network.backbone.named_parameters()]
        return tuned_scores(
            self, network, names, support, query, start=self.start, batch_norm=self.batch_norm
        )

    def adapted(self, network: FewShotNetwork, n_way: int) -> int:
        backbone = sum(p.numel() for p in network.backbone.parameters())
        return super().adapted(network, n_way) + (backbone if self.tune == "all" else 0)
