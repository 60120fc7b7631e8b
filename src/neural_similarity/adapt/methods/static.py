"""Method ``static``: similarities and a classifier are tuned together, then merged.

It is the few-shot method of the same name with the options of :func:`static_method`.
"""

from __future__ import annotations

import copy
import warnings
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...convert import attach, merge
from ...convert.switch import check_switched_on
from ...errors import SkippedLayerWarning
from ...fewshot.inner_loop.episode_parameters import (
    BIAS,
    WEIGHT,
    named_parameters,
    scores_with,
    similarity_names,
)
from ...fewshot.inner_loop.support_sgd import SupportSGD
from ...fewshot.methods.static import Static
from ...fewshot.network import FewShotNetwork
from ...nn.inventory import static_similarities
from ...nn.static import StaticSimilarity
from .. import linear_heads as heads
from .base import AdaptedNetwork, Adapter

__all__ = ["StaticAdapter", "static_method", "with_static"]

_BATCH = 64
_IMAGE_STEPS = 1000  # images that tune similarities, counted again in every epoch


@dataclass(eq=False)
class StaticAdapter(Adapter):
    """Static similarities and a classifier, tuned together, then merged.

    The classifier alone is tuned first, on features, by the paper's steps, which is cheap; then
    both, by the steps of :func:`static_method`.
    """

    def __post_init__(self) -> None:
        backbone = self.data.backbone
        self.module = with_static(copy.deepcopy(backbone.module)).eval()
        self.fewshot_network = FewShotNetwork(self.module, backbone.image_shape).eval()
        pixels = self.data.pixels(torch.arange(len(self.data)))
        self.ready = backbone.preprocessing.normalise(pixels)

    def fit(self, rows: Tensor) -> dict[str, Tensor]:
        labels, network = self.data.labels[rows], self.fewshot_network
        n_way = self.data.n_way
        first = heads.tuned(self.data.features[rows], labels, n_way, SupportSGD())
        names = similarity_names(self.module)
        start = {name: t.detach() for name, t in named_parameters(network, names).items()}
        start |= {WEIGHT: first.weight.detach(), BIAS: first.bias.detach()}
        images, weights = self.ready[rows], heads.class_weights(labels, n_way)

        @torch.enable_grad()  # type: ignore[untyped-decorator,unused-ignore]
        def gradients(tensors: list[Tensor], chosen: Tensor) -> list[Tensor]:
            leaves = [tensor.detach().requires_grad_() for tensor in tensors]
            parameters = dict(zip(start, leaves, strict=True))
            scores = scores_with(network, parameters, images[chosen])
            losses = F.cross_entropy(scores, labels[chosen], reduction="none")
            return list(torch.autograd.grad((losses * weights[chosen]).mean(), leaves))

        last = static_method(len(rows)).descend(list(start.values()), gradients, len(rows))
        return dict(zip(start, last, strict=True))

    @torch.no_grad()
    def scores(self, learned: dict[str, Tensor], rows: Tensor) -> Tensor:
        pieces = self.ready[rows].split(_BATCH)
        network = self.fewshot_network
        return torch.cat([scores_with(network, learned, piece) for piece in pieces])

    def network(self, learned: dict[str, Tensor]) -> AdaptedNetwork:
        module = copy.deepcopy(self.module)
        parameters = dict(module.named_parameters())
        with torch.no_grad():
            for name in similarity_names(module):
                parameters[name].copy_(learned[name])
        classifier = heads.linear(learned[WEIGHT], learned[BIAS])
        return AdaptedNetwork(merge(module), classifier, False).eval().requires_grad_(False)


def static_method(images: int) -> Static:
    """The few-shot method ``static`` with the options that suit this many images.

    From a tuned classifier, its steps take twice as many images as the paper's, at twice the
    learning rate, and at most a thousand images in all.
    """
    paper = Static()
    epochs = max(1, min(paper.epochs, _IMAGE_STEPS // images))
    return replace(paper, start="tuned", epochs=epochs, batch_size=8, lr=2 * paper.lr)


def with_static(module: nn.Module) -> nn.Module:
    """The module with a diagonal similarity where its network wants one."""
    check_switched_on("adapt", module)
    if any(static_similarities(part) for part in module.modules()):
        return module
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SkippedLayerWarning)
        return attach(module, StaticSimilarity())
