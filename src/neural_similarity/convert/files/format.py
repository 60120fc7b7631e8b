"""What a similarity file looks like: a safetensors file with a description in its metadata.

The description has a version, the configurations (``attachments``), and for each layer the number
of its configuration and the shapes of the weights that the similarity was learned for.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors.torch import save
from torch import Tensor, nn

from ..._io import whole_file
from ..._json import Count, Side, build, parse_json
from ..._tensor_files import check_finite, fits, read_tensors
from ...errors import FileFormatError, NeuralSimilarityError
from ...nn.dynamic import DynamicSimilarity
from ...nn.inventory import Similarity
from ...nn.layouts import kernel_layouts, stock_type
from ...nn.parametrization import SimilarityParametrization
from ...nn.static import StaticSimilarity

__all__ = [
    "Config",
    "config_from",
    "fingerprint",
    "fingerprint_text",
    "read_file",
    "saved_tensor",
    "tensors_of",
    "write_file",
]

Config = StaticSimilarity | DynamicSimilarity
_KEY, _VERSION = "neural_similarity", 1


def write_file(
    path: str | os.PathLike[str],
    configs: list[Config],
    layers: dict[str, dict[str, Any]],
    tensors: dict[str, Tensor],
) -> None:
    """Write a similarity file, which appears whole or not at all."""
    description = {
        "version": _VERSION,
        "attachments": [config.to_config() for config in configs],
        "layers": layers,
    }
    metadata = {_KEY: json.dumps(description)}
    with whole_file(path) as file:  # save_file would make it readable only by its owner
        file.write_bytes(save(tensors, metadata=metadata))


def read_file(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The description and the tensors of a similarity file."""
    if not Path(path).is_file():
        what = "a folder" if Path(path).is_dir() else "a path where no file exists"
        raise FileNotFoundError(f"load_similarity: expected a file, got {what}: {str(path)!r}.")
    tensors, metadata = read_tensors(path, FileFormatError, "a safetensors file", "Save it again.")
    try:
        description = _validated(metadata[_KEY], path)
    except (LookupError, TypeError, AttributeError, ValueError, NeuralSimilarityError) as error:
        raise FileFormatError(
            f"load_similarity: expected a file written by save_similarity, got {str(path)!r}, "
            f"whose description is missing or unknown ({type(error).__name__}: {error})."
        ) from error
    check_finite(path, tensors, FileFormatError)
    return description, tensors


def saved_tensor(
    path: str | os.PathLike[str], tensors: dict[str, Tensor], key: str, like: Tensor
) -> Tensor:
    """The tensor of this key, checked to fit ``like``."""
    tensor = tensors.get(key)
    if tensor is None or not fits(tensor, like):
        got = "nothing" if tensor is None else f"{tuple(tensor.shape)}, {tensor.dtype}"
        raise FileFormatError(
            f"load_similarity: expected {key!r} of shape {tuple(like.shape)}, {like.dtype} in "
            f"{str(path)!r}, got {got}. The file does not contain what it describes. Save it again."
        )
    return tensor


def tensors_of(layer: str, similarities: Mapping[str, Similarity]) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a layer's similarity by their keys in a file, which omit its name."""
    for part, similarity in similarities.items():
        tensors = (
            {f"numbers.{key}": tensor for key, tensor in similarity.numbers.items()}
            if isinstance(similarity, SimilarityParametrization)
            else similarity.state_dict(keep_vars=True)
        )
        for key, tensor in tensors.items():
            yield f"{layer}.{part}.{key}".lstrip("."), tensor


def fingerprint(module: nn.Module) -> dict[str, Any]:
    """The class of a layer and the shapes of its weights, as they are without a similarity."""
    return {
        "class": stock_type(module).__name__,
        "groups": getattr(module, "groups", 1),
        "weights": {
            name: list(layout.stored) for name, layout in kernel_layouts(module, None, "layer")
        },
    }


def fingerprint_text(fingerprint: dict[str, Any]) -> str:
    """A fingerprint as readable text."""
    shapes = ", ".join(f"{name} {tuple(s)}" for name, s in fingerprint["weights"].items())
    return f"{fingerprint['class']} with {shapes}, groups {fingerprint['groups']}"


def config_from(saved: dict[str, Any]) -> Config:
    """The configuration that ``to_config`` described."""
    modes: dict[str, Any] = {"static": StaticSimilarity, "dynamic": DynamicSimilarity}
    config: Config = modes[saved["mode"]].from_config(saved)
    return config


@dataclass(frozen=True)
class _Fingerprint:
    class_: str = field(metadata={"key": "class"})
    groups: Side
    weights: dict[str, list[Count]]


@dataclass(frozen=True)
class _Layer:
    attachment: Count
    fingerprint: _Fingerprint


@dataclass(frozen=True)
class _Description:
    version: int
    attachments: list[dict[str, Any]]
    layers: dict[str, _Layer]


@dataclass(frozen=True)
class _Version:
    version: int


def _validated(text: str, path: str | os.PathLike[str]) -> dict[str, Any]:
    """The description, if it is complete and this version can read it."""
    values = parse_json(text, path, FileFormatError)
    version = build(_Version, values, path, FileFormatError, others=True).version
    if version != _VERSION:
        raise ValueError(f"version {version}, but this library reads version {_VERSION}")
    description = build(_Description, values, path, FileFormatError, others=True)
    configs = [config_from(saved) for saved in description.attachments]
    if not description.layers:
        raise ValueError("it has no layers")
    for layer in description.layers.values():
        if layer.attachment >= len(configs):
            raise ValueError(f"attachment {layer.attachment} is missing")
    result: dict[str, Any] = values
    return result
