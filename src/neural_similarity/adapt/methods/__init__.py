"""The methods that adapt a backbone to images of new classes; each ends in a linear classifier.

Each is the few-shot method of the same name, and gives the same scores if all classes have equally
many images. But ``proto`` uses unit-length features here, and its scores are multiplied by
:data:`~neural_similarity.adapt.linear_heads.SCALE`; ``linear`` and ``laplace`` also learn from
mirror images. Three methods differ: ``ensemble`` averages ``linear`` and ``ridge``; for ``static``
see :mod:`~neural_similarity.adapt.methods.static`, for ``blocks``
:mod:`~neural_similarity.adapt.methods.blocks`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn

from ...convert.switch import is_switched_off
from ...errors import AttachError
from ...fewshot.methods.similarity.dynamic import Dynamic
from ...nn.dynamic import DynamicLayer
from .. import linear_heads as heads
from ..backbones.extractor import FeatureExtractor
from ..training_images import TrainingImages
from .base import AdaptedNetwork, Adapter, RememberedFits
from .blocks import BlocksAdapter
from .on_features import EnsembleAdapter, HeadAdapter
from .static import Layers, StaticAdapter, StaticOptions, static_options, tuned_part

__all__ = [
    "METHODS",
    "TUNING",
    "AdaptedNetwork",
    "Adapter",
    "Layers",
    "RememberedFits",
    "StaticAdapter",
    "StaticOptions",
    "can_adapt",
    "make_adapter",
    "share_fits",
    "static_options",
    "takes_long",
]

METHODS = ("ensemble", "linear", "ridge", "proto", "laplace", "dynamic", "static", "blocks")
"""The first is preferred, unless another one is clearly better."""
TUNING = ("static", "blocks")
"""Those that tune the network itself; it is then plain, whatever similarity it had."""

_MOST_WORK = 1e8  # multiply-adds per image in the tuned part, above which a fit takes minutes


def make_adapter(method: str, data: TrainingImages, static: StaticOptions | None = None) -> Adapter:
    """One of :data:`METHODS` on the images and their features.

    ``static`` are the options of method ``static``.
    """
    if method == "static":
        return StaticAdapter(data, static or StaticOptions())
    if method == "blocks":
        return BlocksAdapter(data)
    if method == "dynamic":
        return HeadAdapter(data, partial(heads.tuned, method=Dynamic()), unit=False)
    if method == "ensemble":
        return EnsembleAdapter(data, _linear(data), _ridge(data))
    if method == "linear":
        return _linear(data)
    if method == "ridge":
        return _ridge(data)
    if method == "laplace":
        rows = cast(Tensor, data.backbone.base_classifier)  # can_adapt has checked it
        make = partial(heads.laplace, base_classifier=rows)
        return HeadAdapter(data, make, unit=False, mirrors=True)
    assert method == "proto"
    return HeadAdapter(data, heads.prototypes)


def share_fits(adapters: Mapping[str, Adapter]) -> None:
    """Let the ensemble use the fits of its methods if they are here: none is fitted twice."""
    ensemble = adapters.get("ensemble")
    if isinstance(ensemble, EnsembleAdapter):
        for name in ("linear", "ridge"):
            part = adapters.get(name)
            if isinstance(part, HeadAdapter) and part.data is ensemble.data:
                setattr(ensemble, name, part)


def _linear(data: TrainingImages) -> HeadAdapter:
    return HeadAdapter(data, heads.logistic, mirrors=True)


def _ridge(data: TrainingImages) -> HeadAdapter:
    return HeadAdapter(data, heads.ridge, copies=True)


def can_adapt(
    method: str, backbone: FeatureExtractor, static: StaticOptions | None = None
) -> str | None:
    """What a method needs and a backbone lacks, as "needs ..."; None if nothing is missing."""
    if method == "laplace":
        return _no_prior(backbone)
    dynamic = any(isinstance(part, DynamicLayer) for part in backbone.module.modules())
    if method == "dynamic" and not dynamic:
        return "needs a backbone with a dynamic similarity"
    if method in TUNING and dynamic:
        return "needs a backbone without a dynamic similarity"
    if method in (*TUNING, "dynamic") and is_switched_off(backbone.module):
        return (
            "needs an active similarity, and that of the backbone is switched off; choose it with "
            "neural_similarity.set_similarity(module, name)"
        )
    if method == "blocks":
        return _no_layers(backbone)
    if method != "static":
        return None
    try:
        tuned_part(backbone, static or StaticOptions())
    except AttachError as error:
        return f"needs layers that can have a similarity ({error})"
    return None


def takes_long(method: str, backbone: FeatureExtractor) -> str | None:
    """Why ``auto`` skips a method: its tuning takes minutes. None if it does not."""
    choose = f"choose it with --method {method}, or method={method!r}"
    if method == "blocks":
        return f"takes minutes on most backbones; {choose}"
    if method == "static" and _tuned_work(backbone) > _MOST_WORK:
        return f"takes minutes on this backbone; {choose}"
    return None


def _no_prior(backbone: FeatureExtractor) -> str | None:
    rows = backbone.base_classifier
    if rows is None:
        return "needs the classifier that the backbone was trained with"
    if len(rows) < 2:
        return "needs a backbone that was trained on two base classes or more"
    return None


def _no_layers(backbone: FeatureExtractor) -> str | None:
    parameter = next(backbone.module.parameters(), None)
    if parameter is None or parameter.dtype not in (torch.float32, torch.float64):
        return "needs a backbone with weights in float32 or float64"
    if not any(isinstance(part, nn.Conv2d | nn.Linear) for part in backbone.module.modules()):
        return "needs a backbone with convolutions or linear layers"
    return None


def _tuned_work(backbone: FeatureExtractor) -> int:
    """Multiply-adds (MACs) per image of the convolutions, from the first tuned block upwards.

    ``convert.multiply_adds`` counts all layers, but its imports take seconds.
    """
    work = 0

    def count(module: nn.Module, _input: object, output: Tensor) -> None:
        nonlocal work
        work += output.numel() * cast(Tensor, module.weight)[0].numel()

    part = tuned_part(backbone, StaticOptions())
    image = next(part.parameters()).new_zeros(1, *backbone.image_shape)
    maps = part.lower(image)
    layers = [m for m in part.upper.modules() if isinstance(m, nn.Conv2d)]
    handles = [layer.register_forward_hook(count) for layer in layers]
    try:
        with torch.no_grad():
            part(maps)
    finally:
        for handle in handles:
            handle.remove()
    return work
