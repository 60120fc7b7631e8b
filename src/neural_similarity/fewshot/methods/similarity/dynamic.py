"""Dynamic NSN (Section 7.2): the network adapts to its input, so only the classifier is tuned.

Paper: "Neural Similarity Learning", https://arxiv.org/abs/1910.13003.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import nn

from ...inner_loop.episode_parameters import with_similarity
from ..classifiers.linear_classifiers import TunedClassifier
from ..registry import register_method

__all__ = ["Dynamic"]


@register_method
@dataclass(frozen=True)
class Dynamic(TunedClassifier):
    """A dynamic network trained on base classes; new classes get a new linear classifier.

    Its predictors have learned which similarity suits which input; they no longer change.
    """

    name: ClassVar[str] = "dynamic"
    trains_on: ClassVar[Literal["images", "episodes"]] = "images"
    similarity: ClassVar[Literal["none", "static", "dynamic"]] = "dynamic"

    def prepare(self, backbone: nn.Module) -> nn.Module:
        return with_similarity(backbone, "dynamic")
