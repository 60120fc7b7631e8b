"""Networks that give features, from wherever people have them, and what images they want.

A backbone is named by a shipped name, the folder of a run, a file, ``timm:NAME`` or
``module:function``.
"""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ...convert import merge
from ...data import dataset_info
from ...data.images import SEEN_SHARE
from ...errors import DataError, RunError, ShapeError, UnknownNameError
from ...fewshot.network import FewShotNetwork
from ...fewshot.runs import FewShotRun
from ...nn.inventory import static_similarities
from ...train import Run
from ...train.settings import Settings
from ..preprocessing import Preprocessing
from .files import build_network, network_source, read_backbone
from .last_layer import check_features, find_classifier, remove_classifier
from .user_function import call_function

__all__ = [
    "DEFAULT",
    "PLAIN_TWIN",
    "FeatureExtractor",
    "list_backbones",
    "load_backbone",
    "rebuild",
]

SHIPPED = Path(__file__).parent / "pretrained"
DEFAULT, PLAIN_TWIN = "cnn4-dynamic", "cnn4-plain"

_FORMS = "the folder of a run, a backbone file, timm:NAME or module:function"


@dataclass(frozen=True, eq=False)
class FeatureExtractor:
    """A network from images to features, and what images it wants.

    Args:
        module: reads ``(N, C, S, S)`` and returns features; it is used as it is, in evaluation.
        preprocessing: what images have to look like.
        name: what to call it.
        source: how to make the module again, for files; None if that is not known.
        card: what is to be known about it: data, recipe, results, limits.
    """

    module: nn.Module = field(repr=False)
    preprocessing: Preprocessing
    name: str = "a module"
    source: Mapping[str, Any] | None = field(default=None, repr=False)
    card: str = field(default="", repr=False)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        side = self.preprocessing.image_size
        return self.preprocessing.channels, side, side


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
        image_size, mean, std, crop: other preprocessing than the backbone's own; a
            ``module:function`` has none, so the first three must be given there.
        classifier: the name of the layer that gives the scores, where it is not found by itself:
            ``get_classifier()`` as in timm, or the linear layer whose output is the network's.
    """
    name = DEFAULT if spec is None else _spec(spec)
    given = {"image_size": image_size, "mean": mean, "std": std, "crop": crop}
    changes: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    with torch.random.fork_rng():  # a network draws its first weights, from a seed of its own
        made = _load(name, spec is None, changes, classifier)
    if changes:
        made = replace(made, preprocessing=replace(made.preprocessing, **changes))
    check_features(made.name, made.module, made.image_shape)
    return made


def rebuild(
    source: Mapping[str, Any], given: str | os.PathLike[str] | FeatureExtractor | None
) -> nn.Module:
    """The module a :class:`FeatureExtractor` was saved from, its weights still to be read.

    What runs code of others is never called because a file says so: it must be given.
    """
    if isinstance(given, FeatureExtractor):
        return copy.deepcopy(given.module)
    if given is not None:
        factory = source["kind"] == "factory"
        made = call_function(_spec(given)) if factory else load_backbone(given).module
        return remove_classifier(made, source["classifier"]) if factory else made
    if source["kind"] == "create_model":
        return build_network(source)
    if source["kind"] == "timm":
        return remove_classifier(
            _timm().create_model(source["name"], pretrained=False), source["classifier"]
        )
    raise RunError(
        f"load: expected the backbone {source.get('name', 'that was used')!r} to be given, got "
        f"none. It runs code that is not in the file. Give it as backbone (--backbone)."
    )


def _spec(spec: str | os.PathLike[str]) -> str:
    """The text that names a backbone; people also try with the module itself."""
    if isinstance(spec, str | os.PathLike):
        return str(spec)
    raise RunError(
        f"backbone: expected {_FORMS}, got an object of class {type(spec).__name__}. A module is "
        f"given as FeatureExtractor(module, Preprocessing(image_size, mean, std)) of "
        f"neural_similarity.adapt."
    )


def _load(
    name: str, default: bool, changes: Mapping[str, Any], classifier: str | None
) -> FeatureExtractor:
    shipped = SHIPPED / f"{name}.safetensors"
    if classifier is not None and (shipped.is_file() or Path(name).exists()):
        raise RunError(
            f"backbone: expected no classifier with {name!r}, got {classifier!r}. Its own is off "
            f"already. Name one for a network of timm or of a function."
        )
    if shipped.is_file() or Path(name).is_file():
        file = shipped if shipped.is_file() else Path(name)
        module, source, preprocessing, card = read_backbone(file)
        return FeatureExtractor(module, preprocessing, file.stem, source, card)
    if Path(name).is_dir():
        return _from_run(Path(name))
    kind, _, rest = name.partition(":")
    if kind == "timm" and rest:
        return _from_timm(rest, classifier)
    if rest and not name.endswith(".safetensors"):
        return _from_factory(name, changes, classifier)
    if default or name in (DEFAULT, PLAIN_TWIN):
        raise DataError(
            f"backbone: expected {name!r} to come with the package, got an installation without "
            f"it. Give a backbone: {_FORMS}."
        )
    raise UnknownNameError(
        f"backbone: expected {_FORMS}, or one of the shipped {list_backbones()}, got {name!r}."
    )


def _from_run(folder: Path) -> FeatureExtractor:
    """The network of a run, static similarities merged: method static begins anew from there."""
    try:
        kind = json.loads((folder / "config.json").read_text()).get("kind", "train")
    except (OSError, ValueError, AttributeError):
        kind = "train"  # whose error says what is missing
    config: Settings
    if kind == "fewshot":
        few = FewShotRun.open(folder)
        module, config, known = few.load_network().backbone, few.config, few.environment()
    else:
        run = Run.open(folder)
        module, config, known = run.load_model(), run.config, run.environment()
    if any(static_similarities(part) for part in module.modules()):
        merge(module)
    channels, side = known["in_channels"], known["image_size"]
    source = network_source(module, config.model, config.options, channels, side)
    FewShotNetwork(module, (channels, side, side))  # takes the classifier off
    seen = SEEN_SHARE if dataset_info(config.data).augment.resized_crop else 1.0
    preprocessing = Preprocessing(side, known["mean"], known["std"], crop=seen)
    card = f"{config.model} trained on {config.data} by: {' '.join(known['command'])}"
    return FeatureExtractor(module, preprocessing, f"run {folder.name}", source, card)


def _from_timm(name: str, classifier: str | None) -> FeatureExtractor:
    timm = _timm()
    try:
        module = timm.create_model(name, pretrained=True)
    except RuntimeError as error:
        raise UnknownNameError(
            f"timm:{name}: expected a network of timm, got none ({error})."
        ) from error
    config = timm.data.resolve_model_data_config(module)
    channels, *sides = config["input_size"]
    known = config.get("interpolation", "bicubic")
    preprocessing = Preprocessing(
        max(sides),
        tuple(config["mean"])[:channels],
        tuple(config["std"])[:channels],
        crop=config.get("crop_pct", 1.0),
        interpolation=known if known in ("bilinear", "bicubic") else "bicubic",
    )
    source = {"kind": "timm", "name": name, "classifier": classifier}
    return FeatureExtractor(
        remove_classifier(module, classifier), preprocessing, f"timm:{name}", source
    )


def _from_factory(
    spec: str, changes: Mapping[str, Any], classifier: str | None
) -> FeatureExtractor:
    missing = [key for key in ("image_size", "mean", "std") if key not in changes]
    if missing:
        raise ShapeError(
            f"{spec}: expected the preprocessing of this network, got no {', '.join(missing)}. "
            f"Only you know what its images look like. Give image_size, mean and std "
            f"(--image-size, --mean, --std)."
        )
    module = call_function(spec)
    made = FeatureExtractor(module, Preprocessing(**changes), spec)
    name = classifier or find_classifier(spec, module, made.image_shape)
    source = {"kind": "factory", "name": spec, "classifier": name}
    return replace(made, module=remove_classifier(module, name), source=source)


def _timm() -> Any:
    try:
        timm: Any = import_module("timm")
        import_module("timm.data")
    except Exception as error:  # what it is built on may fail in any way
        raise RunError(
            f"backbone: expected the package timm, got {type(error).__name__}: {error}. Install "
            f"it, or give another backbone: {_FORMS}."
        ) from error
    return timm
