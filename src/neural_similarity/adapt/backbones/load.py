"""Feature extractors by name: pretrained ones, and those of a run, a file, timm or a function."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from ..._json import build
from ...errors import DataError, FileFormatError, RunError, UnknownNameError
from ...models import list_models
from ...models.pretrained_weights import INSTALL
from .extractor import FeatureExtractor
from .files import build_network, read_backbone
from .from_run import extractor_from_run
from .imagenet import extractor_from_weights, installed_networks
from .network_output import check_features
from .timm_network import build_timm, extractor_from_timm
from .user_function import extractor_from_function, network_of_function

__all__ = [
    "PLAIN_TWIN",
    "SHIPPED",
    "SHIPPED_DYNAMIC",
    "default_backbone",
    "list_backbones",
    "load_backbone",
    "missing_hint",
    "rebuild",
]

SHIPPED = Path(__file__).parent / "pretrained"
SHIPPED_DYNAMIC, PLAIN_TWIN = "cnn4-dynamic", "cnn4-plain"

_FORMS = "the folder of a run, a backbone file, timm:NAME or module:function"


def list_backbones() -> list[str]:
    """The names of the available backbones: the small ones shipped here, and installed ones.

    The extra ``pretrained`` installs networks that were trained on ImageNet.
    """
    shipped = sorted(file.stem for file in SHIPPED.glob("*.safetensors"))
    return [*shipped, *installed_networks()]


def default_backbone() -> str:
    """The best available backbone: one trained on ImageNet, or the shipped dynamic network."""
    return next(iter(installed_networks()), SHIPPED_DYNAMIC)


def missing_hint() -> str | None:
    """One line on what to install for a better default and why; None if it is installed."""
    if installed_networks():
        return None
    return (
        f"The small network {SHIPPED_DYNAMIC} is used. {INSTALL} installs networks that were "
        f"trained on ImageNet (17 to 23 MB each): they are far more accurate on photographs."
    )


def load_backbone(
    spec: str | os.PathLike[str] | None = None,
    *,
    image_size: int | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    crop: float | None = None,
    classifier: str | None = None,
) -> FeatureExtractor:
    """A backbone without its classifier, in evaluation mode.

    Args:
        spec: one of :func:`list_backbones` (None is the best one installed: a network trained
            on ImageNet, or the small one shipped here); the folder of a run of ``nsl train`` or
            ``nsl fewshot``; a file of ``save_backbone``; ``timm:NAME``, with timm's weights and
            preprocessing; or ``module:function``, which is called without arguments and returns an
            ``nn.Module`` or a :class:`FeatureExtractor`.
        image_size, mean, std, crop: preprocessing that replaces the backbone's own. An
            ``nn.Module`` from a function has none, so it needs the first three.
        classifier: the name of the layer that computes the scores, if it is not found
            automatically, by ``get_classifier()`` as in timm, or as the linear layer whose output
            is the network's.
    """
    name = default_backbone() if spec is None else _spec(spec)
    arguments = {"image_size": image_size, "mean": mean, "std": std, "crop": crop}
    changes: dict[str, Any] = {key: value for key, value in arguments.items() if value is not None}
    with torch.random.fork_rng():  # initialising a network draws random numbers
        extractor = _load(name, changes, classifier)
    if changes:
        preprocessing = replace(extractor.preprocessing, **changes)
        extractor = replace(extractor, preprocessing=preprocessing)
    extractor.module.eval()
    check_features(extractor.name, extractor.module, extractor.image_shape)
    return extractor


def rebuild(
    source: Mapping[str, Any], backbone: str | os.PathLike[str] | FeatureExtractor | None
) -> nn.Module:
    """The module that a :class:`FeatureExtractor` was saved from, with new weights.

    A file never makes this library run other people's code: the user must name that backbone again.
    """
    if isinstance(backbone, FeatureExtractor):
        return copy.deepcopy(backbone.module)
    described = build(_Source, dict(source), "source", FileFormatError, others=True)
    if backbone is not None:
        if described.kind == "factory":
            return network_of_function(_spec(backbone), described.classifier)
        return load_backbone(backbone).module
    if described.kind == "create_model":
        return build_network(source)
    if described.kind == "timm":
        return build_timm(described.name, described.classifier)
    raise RunError(
        f"load: expected the backbone {described.name!r} as an argument, got none. It runs code "
        f"that is not in the file. Pass it as backbone (--backbone)."
    )


@dataclass(frozen=True)
class _Source:
    """How a feature extractor was loaded; :func:`build_network` reads the other fields."""

    kind: Literal["create_model", "timm", "factory", "module"]
    name: str = "that was used"
    classifier: str | None = None


def _spec(spec: str | os.PathLike[str]) -> str:
    """The text that names a backbone; users also try to pass the module itself."""
    if isinstance(spec, str | os.PathLike):
        return str(spec)
    raise RunError(
        f"backbone: expected {_FORMS}, got an object of class {type(spec).__name__}. Wrap a module "
        f"as FeatureExtractor(module, Preprocessing(image_size, mean, std)), both from "
        f"neural_similarity.adapt."
    )


def _load(name: str, changes: Mapping[str, Any], classifier: str | None) -> FeatureExtractor:
    shipped, by_name = SHIPPED / f"{name}.safetensors", name in list_models(pretrained=True)
    if classifier is not None and (by_name or shipped.is_file() or Path(name).exists()):
        raise RunError(
            f"backbone: expected no classifier with {name!r}, got {classifier!r}. Its classifier "
            f"is already removed. Name one only for a network from timm or from a function."
        )
    if by_name:
        return extractor_from_weights(name, changes.get("image_size"))
    if shipped.is_file() or Path(name).is_file():
        file = shipped if shipped.is_file() else Path(name)
        module, source, preprocessing, card = read_backbone(file)
        return FeatureExtractor(module, preprocessing, file.stem, source, card)
    if Path(name).is_dir():
        return extractor_from_run(Path(name))
    kind, _, rest = name.partition(":")
    if kind == "timm" and rest:
        return extractor_from_timm(rest, classifier)
    if rest and not name.endswith(".safetensors"):
        return extractor_from_function(name, changes, classifier)
    if name in (SHIPPED_DYNAMIC, PLAIN_TWIN):
        raise DataError(
            f"backbone: expected {name!r} to come with the package, got an installation without "
            f"it. Name a backbone: {_FORMS}."
        )
    raise UnknownNameError(
        f"backbone: expected {_FORMS}, or one of "
        f"{sorted({*list_backbones(), *list_models(pretrained=True)})}, got {name!r}. "
        f"Write timm: before the name of a network of timm, as in timm:resnet18."
    )
