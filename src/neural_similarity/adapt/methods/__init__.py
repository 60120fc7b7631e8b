"""The methods that adapt a backbone to images of new classes; each ends in a linear classifier.

Each is the few-shot method of the same name: on equally many images of every class it gives the
same scores. ``proto`` works on features of unit length here, and its scores are multiplied by
:data:`~neural_similarity.adapt.linear_heads.SCALE`; ``static`` takes the options of
:func:`~neural_similarity.adapt.methods.static.static_method`.
"""

from __future__ import annotations

import copy
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn

from ...convert.switch import is_switched_off
from ...errors import AttachError
from ...fewshot.methods.dynamic import Dynamic
from ...nn.dynamic import DynamicLayer
from .. import linear_heads as heads
from ..backbones.extractor import FeatureExtractor
from ..training_images import TrainingImages
from .base import AdaptedNetwork, Adapter
from .on_features import HeadAdapter
from .static import StaticAdapter, with_static

__all__ = [
    "METHODS",
    "AdaptedNetwork",
    "Adapter",
    "can_adapt",
    "make_adapter",
    "takes_long",
]

METHODS = ("ridge", "proto", "dynamic", "static")
"""In order of preference among equally good ones: cheaper ones first."""

_MOST_WORK = 1e8  # multiply-adds of an image, above which tuning similarities takes minutes


def make_adapter(method: str, data: TrainingImages) -> Adapter:
    """One of :data:`METHODS` on the images and their features."""
    if method == "static":
        return StaticAdapter(data)
    if method == "dynamic":
        return HeadAdapter(data, partial(heads.tuned, method=Dynamic()), unit=False)
    return HeadAdapter(data, {"ridge": heads.ridge, "proto": heads.prototypes}[method])


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
