"""Whether a similarity file and a model fit each other."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn

from ... import structures
from ...errors import AttachError, FileFormatError
from ...nn.dynamic import DynamicLayer, DynamicSimilarity
from ...nn.inventory import Similarity, similarities_by_name
from ...nn.layouts import can_attach
from ...nn.parametrization import static_by_name
from ...nn.predictors import PredictorNetwork, predictor_class
from ..attach import other_kind
from .format import Config, config_from, fingerprint, fingerprint_text

__all__ = ["config_of", "refuse_misfits", "similarity_of"]


def similarity_of(module: nn.Module, name: str) -> Mapping[str, Similarity]:
    """The layer's similarity of this name; empty without one."""
    return similarities_by_name(module).get(name, {})


def refuse_misfits(
    path: str | os.PathLike[str],
    description: dict[str, Any],
    modules: dict[str, nn.Module],
    name: str,
) -> None:
    """Raise unless every layer of the file fits the model, and the model has no others."""
    layers, attachments = description["layers"], description["attachments"]
    problems = [
        problem
        for layer, saved in layers.items()
        for problem in _misfit(layer, saved, attachments[saved["attachment"]], modules, name)
    ]
    extra = [
        layer for layer, m in modules.items() if similarity_of(m, name) and layer not in layers
    ]
    problems += [f"{layer!r} has a similarity that the file lacks" for layer in extra]
    if problems:
        raise FileFormatError(
            f"load_similarity: expected a model that fits {str(path)!r}, got {len(problems)} "
            f"layer(s) that do not: {'; '.join(problems)}. Build the model the file was saved "
            f"from."
        )


def _misfit(
    layer: str,
    saved: dict[str, Any],
    config: dict[str, Any],
    modules: dict[str, nn.Module],
    name: str,
) -> Iterator[str]:
    """Why a saved layer does not fit the model, if it does not."""
    module = modules.get(layer)
    if module is None or not can_attach(module):
        yield f"{layer!r} is not a layer with a kernel here"
        return
    here = fingerprint(module)
    if here != saved["fingerprint"]:
        text = fingerprint_text(saved["fingerprint"])
        yield f"{layer!r} is {fingerprint_text(here)} here and {text} in the file"
    elif kind := other_kind(module, config_from(config)):
        yield f"{layer!r} has a {kind} similarity here and a {config['mode']} one in the file"
    elif similarity_of(module, name):
        attached = json.loads(json.dumps(config_of(layer, module, name).to_config()))
        for key in config:
            if attached.get(key) != config[key]:
                both = f"{attached.get(key)} here and {config[key]} in the file"
                yield f"the {key} of {layer!r} is {both}"


def config_of(layer: str, module: nn.Module, name: str) -> Config:
    """The configuration that made a layer's similarity."""
    if not isinstance(module, DynamicLayer):
        static = next(iter(static_by_name(module)[name].values())).config
        structures.resolve(structures.resolve(static.structure).name, "save_similarity")
        return static
    installed = module.installed[name]
    if installed.config is not None:
        structure = structures.resolve(installed.config.structure)
        structures.resolve(structure.name, "save_similarity")
        predictor_class(installed.config.predictor.kind, "save_similarity")
        return installed.config
    network = next(iter(module.by_name()[name].values())).network
    if not isinstance(network, PredictorNetwork):
        raise AttachError(
            f"save_similarity: expected predictors of this library, got a {type(network).__name__} "
            f"in layer {layer!r}, which a file cannot describe. Save model.state_dict() instead."
        )
    return DynamicSimilarity(
        installed.structure,
        network.config,
        block_size=installed.block_size,
        over=installed.span.over,
        similarity_groups=installed.span.groups,
    )
