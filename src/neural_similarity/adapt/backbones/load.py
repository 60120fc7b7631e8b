"""Feature extractors by name: shipped ones, and those of a run, a file, timm or a function."""

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
from ...fewshot.network import remove_classifier
from .extractor import FeatureExtractor
from .files import build_network, read_backbone
from .from_run import extractor_from_run
from .network_output import check_features
from .timm_network import build_timm, extractor_from_timm
from .user_function import call_function, extractor_from_function

__all__ = ["DEFAULT", "PLAIN_TWIN", "SHIPPED", "list_backbones", "load_backbone", "rebuild"]

SHIPPED = Path(__file__).parent / "pretrained"
DEFAULT, PLAIN_TWIN = "cnn4-dynamic", "cnn4-plain"

_FORMS = "the folder of a run, a backbone file, timm:NAME or module:function"


def list_backbones() -> list[str]:
    """The names of the backbones that come with the package."""
    return sorted(file.stem for file in SHIPPED.glob("*.safetensors"))


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
        spec: one of :func:`list_backbones` (None is the dynamic one); the folder of a run of
            ``nsl train`` or ``nsl fewshot``; a file of ``save_backbone``; ``timm:NAME``, with
            timm's weights and preprocessing; or ``module:function``, which is called without
            arguments and returns an ``nn.Module``.
        image_size, mean, std, crop: preprocessing that replaces the backbone's own. A
            ``module:function`` has none, so it needs the first three.
        classifier: the name of the layer that computes the scores, if it is not found
            automatically: ``get_classifier()`` as in timm, or the linear layer whose output is
            the network's.
    """
    name = DEFAULT if spec is None else _spec(spec)
    arguments = {"image_size": image_size, "mean": mean, "std": std, "crop": crop}
    changes: dict[str, Any] = {key: value for key, value in arguments.items() if value is not None}
    with torch.random.fork_rng():  # a network draws its first weights, from a seed of its own
        extractor = _load(name, spec is None, changes, classifier)
    if changes:
        preprocessing = replace(extractor.preprocessing, **changes)
        extractor = replace(extractor, preprocessing=preprocessing)
    extractor.module.eval()
    check_features(extractor.name, extractor.module, extractor.image_shape)
    return extractor


def rebuild(
    source: Mapping[str, Any], backbone: str | os.PathLike[str] | FeatureExtractor | None
) -> nn.Module:
    """The module that a :class:`FeatureExtractor` was saved from; its weights are still new.

    A file never makes this library run the code of others: the user must name that backbone again.
    """
    if isinstance(backbone, FeatureExtractor):
        return copy.deepcopy(backbone.module)
    described = build(_Source, dict(source), "source", FileFormatError, others=True)
    if backbone is not None:
        if described.kind == "factory":
            return remove_classifier(call_function(_spec(backbone)), described.classifier)
        return load_backbone(backbone).module
    if described.kind == "create_model":
        return build_network(source)
    if described.kind == "timm":
        return build_timm(described.name, described.classifier)
    raise RunError(
        f"load: expected the backbone {described.name!r} as an argument, got none. It runs code "
        f"that is not in the file. Name it as backbone (--backbone)."
    )


@dataclass(frozen=True)
class _Source:
    """How a feature extractor was loaded; :func:`build_network` reads the rest of its own."""

    kind: Literal["create_model", "timm", "factory", "module"]
    name: str = "that was used"
    classifier: str | None = None


def _spec(spec: str | os.PathLike[str]) -> str:
    """The text that names a backbone; users also try to pass the module itself."""
    if isinstance(spec, str | os.PathLike):
        return str(spec)
    raise RunError(
        f"backbone: expected {_FORMS}, got an object of class {type(spec).__name__}. Pass a module "
        f"as FeatureExtractor(module, Preprocessing(image_size, mean, std)) of "
        f"neural_similarity.adapt."
    )


def _load(
    name: str, default: bool, changes: Mapping[str, Any], classifier: str | None
) -> FeatureExtractor:
    shipped = SHIPPED / f"{name}.safetensors"
    if classifier is not None and (shipped.is_file() or Path(name).exists()):
        raise RunError(
            f"backbone: expected no classifier with {name!r}, got {classifier!r}. Its classifier "
            f"is removed already. Name one only for a network of timm or of a function."
        )
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
    if default or name in (DEFAULT, PLAIN_TWIN):
        raise DataError(
            f"backbone: expected {name!r} to come with the package, got an installation without "
            f"it. Name a backbone: {_FORMS}."
        )
    raise UnknownNameError(
        f"backbone: expected {_FORMS}, or one of the shipped {list_backbones()}, got {name!r}."
    )
