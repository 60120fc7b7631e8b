"""The methods that adapt a backbone to images of new classes; each ends in a linear classifier.

Each is the few-shot method of the same name: on equally many images of every class it gives the
same scores. ``proto`` works on features of unit length here, and its scores are multiplied by
:data:`~neural_similarity.adapt.linear_heads.SCALE`; ``static`` takes the options of
:func:`static_method`.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..convert import attach, merge
from ..convert.switch import check_switched_on, is_switched_off
from ..errors import AttachError, SkippedLayerWarning
from ..fewshot.inner_loop.episode_parameters import (
    BIAS,
    WEIGHT,
    named_parameters,
    scores_with,
    similarity_names,
)
from ..fewshot.inner_loop.support_sgd import SupportSGD
from ..fewshot.methods.dynamic import Dynamic
from ..fewshot.methods.static import Static
from ..fewshot.network import FewShotNetwork
from ..nn.dynamic import DynamicLayer
from ..nn.inventory import static_similarities
from ..nn.static import StaticSimilarity
from . import linear_heads as heads
from .backbones.extractor import FeatureExtractor
from .backbones.network_output import check_finite
from .preprocessing import Preprocessing

__all__ = [
    "METHODS",
    "AdaptedNetwork",
    "Adapter",
    "can_adapt",
    "embed",
    "make_adapter",
    "static_method",
    "takes_long",
]

METHODS = ("ridge", "proto", "dynamic", "static")
"""In order of preference among equally good ones: cheaper ones first."""

_BATCH = 64
_IMAGE_STEPS = 1000  # images that tune similarities, counted again in every epoch
_MOST_WORK = 1e8  # multiply-adds of an image, above which tuning similarities takes minutes


class AdaptedNetwork(nn.Module):
    """Images to scores: a backbone and a linear layer on its features.

    The softmax of the scores is the probability of each class. ``unit`` scales the features to unit
    length.
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
    """A method on a backbone, for uint8 images ``(N, C, S, S)`` and labels.

    ``fit`` changes nothing: what it learns is its result.
    """

    backbone: FeatureExtractor
    images: Tensor
    labels: Tensor
    n_way: int

    def fit(self, rows: Tensor) -> Any:
        """The parameters that are learned from the images in these rows."""
        raise NotImplementedError

    def scores(self, learned: Any, rows: Tensor) -> Tensor:
        """Scores of the images in these rows."""
        raise NotImplementedError

    def network(self, learned: Any) -> AdaptedNetwork:
        """A new network that gives these scores."""
        raise NotImplementedError


@dataclass(eq=False)
class HeadAdapter(Adapter):
    """A linear classifier on features that do not change, so they are computed once."""

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

    The classifier alone is tuned first, on features, by the paper's steps, which is cheap; then
    both, by the steps of :func:`static_method`.
    """

    def __post_init__(self) -> None:
        self.module = with_static(copy.deepcopy(self.backbone.module)).eval()
        self.fewshot_network = FewShotNetwork(self.module, self.backbone.image_shape).eval()
        self.features = embed(self.module, self.backbone.preprocessing, self.images)
        self.ready = self.backbone.preprocessing.normalise(self.images)

    def fit(self, rows: Tensor) -> dict[str, Tensor]:
        labels, network = self.labels[rows], self.fewshot_network
        first = heads.tuned(self.features[rows], labels, self.n_way, SupportSGD())
        names = similarity_names(self.module)
        start = {name: t.detach() for name, t in named_parameters(network, names).items()}
        start |= {WEIGHT: first.weight.detach(), BIAS: first.bias.detach()}
        images, weights = self.ready[rows], heads.class_weights(labels, self.n_way)

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


def make_adapter(
    method: str, backbone: FeatureExtractor, images: Tensor, labels: Tensor, n_way: int
) -> Adapter:
    """One of :data:`METHODS` on a backbone."""
    if method == "static":
        return StaticAdapter(backbone, images, labels, n_way)
    if method == "dynamic":
        tuned = partial(heads.tuned, method=Dynamic())
        return HeadAdapter(backbone, images, labels, n_way, tuned, unit=False)
    make = {"ridge": heads.ridge, "proto": heads.prototypes}[method]
    return HeadAdapter(backbone, images, labels, n_way, make)


def static_method(images: int) -> Static:
    """The few-shot method ``static`` with the options that suit this many images.

    From a tuned classifier, its steps take twice as many images as the paper's, at twice the
    learning rate, and at most a thousand images in all.
    """
    paper = Static()
    epochs = max(1, min(paper.epochs, _IMAGE_STEPS // images))
    return replace(paper, start="tuned", epochs=epochs, batch_size=8, lr=2 * paper.lr)


def can_adapt(method: str, backbone: FeatureExtractor) -> str | None:
    """The reason why a method does not work on a backbone; None if it does."""
    dynamic = any(isinstance(part, DynamicLayer) for part in backbone.module.modules())
    if method == "dynamic" and not dynamic:
        return "method 'dynamic' needs a backbone with a dynamic similarity"
    if method == "static" and dynamic:
        return "method 'static' needs a backbone without a dynamic similarity"
    if method in ("static", "dynamic") and is_switched_off(backbone.module):
        return (
            f"method {method!r} needs an active similarity, and that of the backbone is switched "
            f"off; choose it with neural_similarity.set_similarity(module, name)"
        )
    if method != "static":
        return None
    try:
        with_static(copy.deepcopy(backbone.module))
    except AttachError as error:
        return f"method 'static' needs layers that can have a similarity ({error})"
    return None


def takes_long(method: str, backbone: FeatureExtractor) -> str | None:
    """The reason why method auto skips a method: its tuning takes minutes. None if it does not."""
    work = _convolution_work(backbone) if method == "static" else 0
    if work <= _MOST_WORK:
        return None
    return (
        f"method {method!r} takes minutes on a backbone of {work / 1e6:,.0f} million multiply-adds "
        f"an image, more than {_MOST_WORK / 1e6:,.0f} million; choose it with --method {method}, "
        f"or method={method!r}"
    )


def with_static(module: nn.Module) -> nn.Module:
    """The module with a diagonal similarity where its network wants one."""
    check_switched_on("adapt", module)
    if any(static_similarities(part) for part in module.modules()):
        return module
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SkippedLayerWarning)
        return attach(module, StaticSimilarity())


@torch.no_grad()
def embed(
    features: Callable[[Tensor], Tensor], preprocessing: Preprocessing, images: Tensor
) -> Tensor:
    """Features ``(N, D)`` of uint8 images."""
    pieces = [features(preprocessing.normalise(piece)).flatten(1) for piece in images.split(_BATCH)]
    return check_finite(torch.cat(pieces))


def _convolution_work(backbone: FeatureExtractor) -> int:
    """Multiply-adds (MACs) of the convolutions for an image.

    ``convert.multiply_adds`` counts all layers, but its imports take seconds.
    """
    work = 0

    def count(module: nn.Module, _input: object, output: Tensor) -> None:
        nonlocal work
        work += output.numel() * cast(Tensor, module.weight)[0].numel()

    layers = [m for m in backbone.module.modules() if isinstance(m, nn.Conv2d)]
    handles = [layer.register_forward_hook(count) for layer in layers]
    try:
        with torch.no_grad():
            backbone.module(torch.zeros(1, *backbone.image_shape))
    finally:
        for handle in handles:
            handle.remove()
    return work
