"""The ways to adapt a backbone to images of new classes; each ends in a plain linear classifier."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..convert import attach, merge
from ..errors import AttachError, SkippedLayerWarning
from ..fewshot.inner_loop.episode_parameters import (
    BIAS,
    WEIGHT,
    named_parameters,
    scores_with,
    similarity_names,
)
from ..fewshot.methods.dynamic import Dynamic
from ..fewshot.methods.static import Static
from ..fewshot.network import FewShotNetwork
from ..nn.dynamic import DynamicLayer
from ..nn.inventory import static_similarities
from ..nn.static import StaticSimilarity
from . import linear_heads as heads
from .backbones.last_layer import check_finite
from .backbones.load import FeatureExtractor
from .preprocessing import Preprocessing

__all__ = [
    "METHODS",
    "AdaptedNetwork",
    "Adapter",
    "can_adapt",
    "embed",
    "make_adapter",
    "takes_long",
]

METHODS = ("ridge", "proto", "dynamic", "static")
"""In the order in which one is preferred to another that is as good: cheaper ones first."""

_BATCH = 64
_IMAGE_STEPS = 1000  # of tuning similarities, whatever the number of images
_MOST_WORK = 1e8  # multiply-adds of an image, above which tuning them takes minutes


class AdaptedNetwork(nn.Module):
    """Images to scores: a backbone, its features if asked for of unit length, a linear layer.

    The softmax of the scores is the probability of each class.
    """

    def __init__(self, backbone: nn.Module, classifier: nn.Linear, unit: bool) -> None:
        super().__init__()
        self.backbone, self.classifier, self.unit = backbone, classifier, unit

    def features(self, images: Tensor) -> Tensor:
        features: Tensor = self.backbone(images).flatten(1)
        return F.normalize(features) if self.unit else features

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.classifier(self.features(images))
        return scores


@dataclass(eq=False)
class Adapter:
    """A method on a backbone, for uint8 images ``(N, C, S, S)`` and labels; ``fit`` is pure."""

    backbone: FeatureExtractor
    images: Tensor
    labels: Tensor
    n_way: int

    def fit(self, rows: Tensor) -> Any:
        """What is learned from the images in these rows."""
        raise NotImplementedError

    def scores(self, learned: Any, rows: Tensor) -> Tensor:
        """Scores of the images in these rows."""
        raise NotImplementedError

    def network(self, learned: Any) -> AdaptedNetwork:
        """A network of its own that gives these scores."""
        raise NotImplementedError


@dataclass(eq=False)
class HeadAdapter(Adapter):
    """A linear classifier on features that stay as they are, so they are computed once."""

    make: Callable[[Tensor, Tensor, int], nn.Linear] = heads.prototypes
    unit: bool = True

    def __post_init__(self) -> None:
        self.features = embed(self.backbone.module, self.backbone.preprocessing, self.images)
        if self.unit:
            self.features = F.normalize(self.features)

    def fit(self, rows: Tensor) -> nn.Linear:
        return self.make(self.features[rows], self.labels[rows], self.n_way)

    @torch.no_grad()
    def scores(self, learned: nn.Linear, rows: Tensor) -> Tensor:
        scores: Tensor = learned(self.features[rows])
        return scores

    def network(self, learned: nn.Linear) -> AdaptedNetwork:
        network = AdaptedNetwork(copy.deepcopy(self.backbone.module), learned, self.unit)
        return network.eval().requires_grad_(False)


@dataclass(eq=False)
class StaticAdapter(Adapter):
    """Static similarities and a classifier, tuned together, then merged.

    The classifier is tuned first, on features, which is cheap and as long as the paper's; then
    both, by steps of twice as many images and twice the size, for at most a thousand images.
    """

    def __post_init__(self) -> None:
        self.module = with_static(copy.deepcopy(self.backbone.module)).eval()
        self.learner = FewShotNetwork(self.module, self.backbone.image_shape).eval()
        self.features = embed(self.module, self.backbone.preprocessing, self.images)
        self.ready = self.backbone.preprocessing.normalise(self.images)

    def fit(self, rows: Tensor) -> dict[str, Tensor]:
        method, labels = Static(), self.labels[rows]
        first = heads.tuned(self.features[rows], labels, self.n_way, method)
        names = similarity_names(self.module)
        start = {name: t.detach() for name, t in named_parameters(self.learner, names).items()}
        start |= {WEIGHT: first.weight.detach(), BIAS: first.bias.detach()}
        images, weights = self.ready[rows], heads.class_weights(labels, self.n_way)

        @torch.enable_grad()  # type: ignore[untyped-decorator,unused-ignore]
        def gradients(tensors: list[Tensor], chosen: Tensor) -> list[Tensor]:
            leaves = [tensor.detach().requires_grad_() for tensor in tensors]
            mine = dict(zip(start, leaves, strict=True))
            scores = scores_with(self.learner, mine, images[chosen])
            losses = F.cross_entropy(scores, labels[chosen], reduction="none")
            return list(torch.autograd.grad((losses * weights[chosen]).mean(), leaves))

        epochs = max(1, min(method.epochs, _IMAGE_STEPS // len(rows)))
        short = replace(method, epochs=epochs, batch_size=8, lr=2 * method.lr)
        last = short.descend(list(start.values()), gradients, len(rows))
        return dict(zip(start, last, strict=True))

    @torch.no_grad()
    def scores(self, learned: dict[str, Tensor], rows: Tensor) -> Tensor:
        pieces = self.ready[rows].split(_BATCH)
        return torch.cat([scores_with(self.learner, learned, piece) for piece in pieces])

    def network(self, learned: dict[str, Tensor]) -> AdaptedNetwork:
        module = copy.deepcopy(self.module)
        parameters = dict(module.named_parameters())
        with torch.no_grad():
            for name in similarity_names(module):
                parameters[name].copy_(learned[name])
        classifier = heads.linear(learned[WEIGHT], learned[BIAS])
        return AdaptedNetwork(merge(module), classifier, False).eval().requires_grad_(False)


def make_adapter(
    method: str, backbone: FeatureExtractor, images: Tensor, labels: Tensor, n_way: int
) -> Adapter:
    """The adapter of one of :data:`METHODS`."""
    if method == "static":
        return StaticAdapter(backbone, images, labels, n_way)
    if method == "dynamic":
        tuned = partial(heads.tuned, method=Dynamic())
        return HeadAdapter(backbone, images, labels, n_way, tuned, unit=False)
    make = {"ridge": heads.ridge, "proto": heads.prototypes}[method]
    return HeadAdapter(backbone, images, labels, n_way, make)


def can_adapt(method: str, backbone: FeatureExtractor) -> str | None:
    """Why a method has no place on a backbone."""
    dynamic = any(isinstance(part, DynamicLayer) for part in backbone.module.modules())
    if method == "dynamic" and not dynamic:
        return "method 'dynamic' needs a backbone with a dynamic similarity"
    if method != "static":
        return None
    if dynamic:
        return "method 'static' needs a backbone without a dynamic similarity"
    try:
        with_static(copy.deepcopy(backbone.module))
    except AttachError as error:
        return f"method 'static' needs layers that can carry a similarity ({error})"
    return None


def takes_long(method: str, backbone: FeatureExtractor) -> str | None:
    """Why a method is not tried unasked: its tuning takes minutes."""
    work = _convolution_work(backbone) if method == "static" else 0
    if work <= _MOST_WORK:
        return None
    return (
        f"method {method!r} takes minutes on a backbone of {work / 1e6:,.0f} million multiply-adds "
        f"an image, more than {_MOST_WORK / 1e6:,.0f} million; ask for it by --method {method}, "
        f"or method={method!r}"
    )


def with_static(module: nn.Module) -> nn.Module:
    """The module with a diagonal similarity where its network wants one."""
    if any(static_similarities(part) for part in module.modules()):
        return module
    layers = getattr(module, "similarity_layers", "all-conv")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SkippedLayerWarning)
        return attach(module, StaticSimilarity(target_modules=layers))


@torch.no_grad()
def embed(
    features: Callable[[Tensor], Tensor], preprocessing: Preprocessing, images: Tensor
) -> Tensor:
    """Features ``(N, D)`` of uint8 images."""
    pieces = [features(preprocessing.normalise(piece)).flatten(1) for piece in images.split(_BATCH)]
    return check_finite(torch.cat(pieces))


def _convolution_work(backbone: FeatureExtractor) -> int:
    """Multiply-adds of the convolutions for an image.

    ``convert.multiply_adds`` counts everything, and takes seconds to import what it needs.
    """
    work = 0

    def count(module: nn.Module, _input: object, output: Tensor) -> None:
        nonlocal work
        work += output.numel() * module.get_parameter("weight")[0].numel()

    layers = [m for m in backbone.module.modules() if isinstance(m, nn.Conv2d)]
    handles = [layer.register_forward_hook(count) for layer in layers]
    try:
        with torch.no_grad():
            backbone.module(torch.zeros(1, *backbone.image_shape))
    finally:
        for handle in handles:
            handle.remove()
    return work
