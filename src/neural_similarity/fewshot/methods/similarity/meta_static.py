"""Meta-learned static NSN (Section 7.2): MAML over the similarity, on a trained network.

Paper: "Neural Similarity Learning", https://arxiv.org/abs/1910.13003.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ....errors import RunError
from ...batches import query_labels
from ...inner_loop.call_with import call_with
from ...inner_loop.episode_parameters import (
    BIAS,
    WEIGHT,
    Tensors,
    named_parameters,
    similarity_names,
    with_similarity,
)
from ...inner_loop.recompute import recomputed
from ...network import FewShotNetwork
from ..gradient.meta_learned import MetaLearned
from ..registry import register_method

__all__ = ["MetaSimilarity", "MetaStatic"]


@dataclass(frozen=True)
class MetaSimilarity(MetaLearned):
    """MAML over similarities and classifier of a trained network, whose weights are frozen.

    In training, BatchNorm keeps the statistics of pretraining. The classifier starts at zero,
    though the paper meta-learns its start too: the classes of an episode have no order, so there is
    nothing to learn, and zero works for any number of ways (``start="learned"`` is the paper's).

    Args:
        classifier_steps: further steps on the classifier alone, in training and in tests.
        recompute: store only similarity and classifier of each step, and recompute the rest in the
            backward pass: takes slightly longer (an eighth for CNN-4), with memory for one step.
        fixed_classifier: steps update only the similarity, as in the text of Section 7.2; in the
            appendix they update both. The classifier then keeps its start, which cannot be zero.
    """

    inner_lr: float = 0.2
    start: Literal["learned", "zero", "prototypes"] = "zero"
    classifier_steps: int = 20
    recompute: bool = True
    fixed_classifier: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.fixed_classifier and self.start == "zero":
            raise RunError(
                f"{self.name}: expected start 'prototypes' or 'learned' with fixed_classifier, got "
                f"'zero'. A classifier that stays at zero classifies nothing."
            )

    def build(
        self, backbone: nn.Module, num_classes: int, image_shape: tuple[int, int, int]
    ) -> FewShotNetwork:
        network = super().build(backbone, num_classes, image_shape)
        network.freeze()
        for parameter in named_parameters(network, self.names(network)).values():
            parameter.requires_grad_(True)
        return network

    @torch.enable_grad()
    def fit(
        self, network: FewShotNetwork, support: Tensor, steps: int, second_order: bool
    ) -> Tensors:
        tensors = super().fit(network, support, steps, second_order)
        if self.fixed_classifier:
            return tensors
        classifier = {name: tensors.pop(name) for name in (WEIGHT, BIAS)}
        features = call_with(network.backbone, tensors, support.flatten(0, 1)).flatten(1)
        labels = query_labels(support.shape[0], support.shape[1], support.device)
        for _ in range(self.classifier_steps):
            scores = F.linear(features, classifier[WEIGHT], classifier[BIAS])
            classifier = self.step(classifier, F.cross_entropy(scores, labels), second_order)
        return tensors | classifier

    def advance(
        self,
        network: FewShotNetwork,
        tensors: Tensors,
        images: Tensor,
        labels: Tensor,
        second_order: bool,
    ) -> Tensors:
        step = super().advance
        if not (second_order and self.recompute):
            return step(network, tensors, images, labels, second_order)

        def values(now: Sequence[Tensor], second_order: bool) -> list[Tensor]:
            named = dict(zip(tensors, now, strict=True))
            return list(step(network, named, images, labels, second_order).values())

        return dict(zip(tensors, recomputed(values, list(tensors.values())), strict=True))

    def step(self, tensors: Tensors, loss: Tensor, second_order: bool) -> Tensors:
        if not self.fixed_classifier:
            return super().step(tensors, loss, second_order)
        moving = {name: t for name, t in tensors.items() if name not in (WEIGHT, BIAS)}
        return tensors | super().step(moving, loss, second_order)

    def adapted(self, network: FewShotNetwork, n_way: int) -> int:
        return super().adapted(network, 0 if self.fixed_classifier else n_way)


@register_method
@dataclass(frozen=True)
class MetaStatic(MetaSimilarity):
    """The trained network of the static NSN with a meta-learned similarity.

    The similarity starts at its meta-learned value and takes five steps together with the
    classifier, which then takes twenty more.
    """

    name: ClassVar[str] = "meta_static"
    similarity: ClassVar[Literal["none", "static", "dynamic"]] = "static"
    starts_from: ClassVar[str | None] = "static"

    def prepare(self, backbone: nn.Module) -> nn.Module:
        return with_similarity(backbone, "static")

    def names(self, network: FewShotNetwork) -> list[str]:
        return similarity_names(network.backbone)
