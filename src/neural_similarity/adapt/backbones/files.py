"""Backbones as files: weights, how to build the network again, and a card; no pickle."""

from __future__ import annotations

import copy
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..._json import Side, build, parse_json
from ..._tensor_files import read_metadata
from ...errors import AttachError, FileFormatError
from ...fewshot.network import remove_classifier
from ...models import create_model, model_weights
from ...nn.dynamic import DynamicLayer, DynamicSimilarity
from ...nn.inventory import active_name, similarities_by_name
from ...nn.names import DEFAULT_NAME
from ...nn.parametrization import static_by_name
from ...train.build import keep_random_numbers
from ...train.checkpoint import read_weights, write_weights
from ..preprocessing import Preprocessing

__all__ = [
    "build_network",
    "in_fast_layout",
    "network_source",
    "read_backbone",
    "read_description",
    "save_backbone",
    "write_described",
]

_KIND, _VERSION = "backbone", 1


def save_backbone(
    path: str | os.PathLike[str],
    module: nn.Module,
    source: Mapping[str, Any],
    preprocessing: Preprocessing,
    *,
    card: str = "",
    half: bool = False,
) -> None:
    """Write a network without its classifier to a safetensors file, atomically.

    Args:
        path: the file.
        module: the network; merge static similarities first.
        source: how to build it again, from :func:`network_source`.
        preprocessing: how images are prepared.
        card: a description for people: data, recipe, results, limits.
        half: store kernels in half precision. The network still computes in float32.
    """
    metadata = {"source": dict(source), "preprocessing": preprocessing.to_dict(), "card": card}
    write_described(Path(path), module, _KIND, metadata, half)


def network_source(
    module: nn.Module, model: str, options: Mapping[str, Any], in_channels: int, image_size: int
) -> dict[str, Any]:
    """What :func:`build_network` needs to build a network of ``create_model`` again."""
    if any(static_by_name(part) for part in module.modules()):
        raise AttachError(
            "save_backbone: expected a network without static similarities, got one with them. "
            "Merge them first: this does not change the output."
        )
    attached = [part for part in module.modules() if similarities_by_name(part)]
    names = {name for part in attached for name in similarities_by_name(part)}
    if names - {DEFAULT_NAME} or not all(map(active_name, attached)):
        raise AttachError(
            f"save_backbone: expected one active similarity named {DEFAULT_NAME!r}, got "
            f"{sorted(names)}. A backbone file does not store names. Attach under the default "
            f"name, or activate it with set_similarity."
        )
    dynamic = {n: m for n, m in module.named_modules() if isinstance(m, DynamicLayer)}
    configs = [getattr(layer, "config", None) for layer in dynamic.values()]
    similarity = None
    if dynamic:
        config = configs[0]
        if not isinstance(config, DynamicSimilarity) or any(c is not config for c in configs):
            raise AttachError(
                "save_backbone: expected dynamic similarities from a single call of attach, got "
                "several configurations. A backbone file can describe only one. Attach them with "
                "a single call."
            )
        similarity = {**config.to_config(), "layers": sorted(dynamic)}
    source = {
        "kind": "create_model",
        "model": model,
        "options": {key: value for key, value in options.items() if key != "pretrained"},
        "in_channels": in_channels,
        "image_size": image_size,
        "similarity": similarity,
    }
    try:
        plain: dict[str, Any] = json.loads(json.dumps(source))
    except TypeError as error:
        raise FileFormatError(
            f"save_backbone: expected options that can be written as JSON, got {options}."
        ) from error
    return plain


def build_network(source: Mapping[str, Any]) -> nn.Module:
    """The network of :func:`network_source`, without classifier and with new weights."""
    network = build(_Source, dict(source), "source", FileFormatError, others=True)
    config = None
    if (similarity := network.similarity) is not None:
        names = build(_Layers, similarity, "similarity", FileFormatError, others=True).layers
        layers = "|".join(re.escape(name) for name in names)
        config = replace(DynamicSimilarity.from_config(similarity), target_modules=layers)
    with keep_random_numbers():
        model = create_model(
            network.model,
            1,
            similarity=config,
            in_channels=network.in_channels,
            image_size=network.image_size,
            **network.options,
        )
    if model_weights(source["model"]) is not None:
        in_fast_layout(model)  # as in the extractor that was saved
    return remove_classifier(model)


def in_fast_layout(module: nn.Module) -> nn.Module:
    """The network, its convolutions now in channels-last memory layout.

    Depthwise convolutions are 1.5 times as fast with it. Results change only by rounding.
    """
    for parameter in module.parameters():
        if parameter.dim() == 4:
            parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
    return module


def read_backbone(
    path: str | os.PathLike[str],
) -> tuple[nn.Module, dict[str, Any], Preprocessing, str]:
    """The network, source, preprocessing and card from a file of :func:`save_backbone`."""
    values = read_description(Path(path), _KIND)
    described = build(_Described, values, path, FileFormatError, others=True)
    try:
        module = build_network(described.source)
    except Exception as error:  # a network may fail in any way on unknown options
        raise FileFormatError(
            f"{path}: expected the description of a network, got one that cannot be built "
            f"({' '.join(str(error).split())})."
        ) from error
    read_weights(Path(path), module)
    return module.eval(), described.source, described.preprocessing, described.card


@dataclass(frozen=True)
class _Described:
    """What the metadata of a backbone file must contain."""

    source: dict[str, Any]
    preprocessing: Preprocessing
    card: str


@dataclass(frozen=True)
class _Source:
    """How to build a network of ``create_model`` again."""

    model: str
    options: dict[str, Any]
    in_channels: Side
    image_size: Side
    similarity: dict[str, Any] | None


@dataclass(frozen=True)
class _Layers:
    layers: list[str]


def write_described(
    path: Path, module: nn.Module, kind: str, metadata: Mapping[str, Any], half: bool = False
) -> None:
    """Write a module's weights and a description of it."""
    if half:
        module = copy.deepcopy(module)
        for tensor in (*module.parameters(), *module.buffers()):
            # Statistics and biases are few, and some exceed the range of half precision.
            if tensor.is_floating_point() and tensor.dim() > 1:
                tensor.data = tensor.data.half()
    described = {**metadata, "kind": kind, "version": _VERSION}
    write_weights(path, module, described, "try again")


def read_description(path: Path, kind: str) -> dict[str, Any]:
    """The description in a file of :func:`write_described`."""
    if not path.is_file():
        raise FileFormatError(f"{path}: expected a file, got no file with this name.")
    text = read_metadata(path, FileFormatError, "a safetensors file")
    described = {
        name: parse_json(value, f"{path}, {name!r}", FileFormatError)
        for name, value in text.items()
    }
    if described.get("kind") != kind or described.get("version") != _VERSION:
        raise FileFormatError(
            f"{path}: expected a file of kind {kind!r}, version {_VERSION}, got kind "
            f"{described.get('kind')!r}, version {described.get('version')!r}. Another program or "
            f"a newer version of this library wrote it. Use another file, or update this library."
        )
    return described
