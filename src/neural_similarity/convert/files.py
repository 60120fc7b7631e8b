"""Similarity-only files: a few kilobytes of safetensors that turn one backbone into many models.

A file holds the numbers behind every M, how each M is built, and the shapes of the weights they
were learned for. It holds no weights and no code.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from .. import structures
from ..errors import AttachError, FileFormatError, NeuralSimilarityError
from ..nn.layouts import can_attach, kernel_layouts, stock_type
from ..nn.static import SimilarityParametrization, StaticSimilarity, layer_similarities

__all__ = ["load_similarity", "save_similarity"]

_Model = TypeVar("_Model", bound=nn.Module)
_KEY, _VERSION = "neural_similarity", 1


def save_similarity(model: nn.Module, path: str | os.PathLike[str]) -> None:
    """Write every similarity of the model, and nothing else, to a safetensors file.

    The file appears whole or not at all.
    """
    layers = {name: m for name, m in model.named_modules() if layer_similarities(m)}
    if not layers:
        raise AttachError(
            "save_similarity: expected a model with an attached similarity, got one without. "
            "Call attach first; after merge there is nothing left to save."
        )
    tensors = {
        key: tensor.detach().contiguous().cpu()
        for name, module in layers.items()
        for key, tensor in _numbers(name, layer_similarities(module))
    }
    description = {
        "version": _VERSION,
        "layers": {name: _describe(module) for name, module in layers.items()},
    }
    target = Path(path)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".saving-") as folder:
        file = Path(folder) / "similarity"
        save_file(tensors, file, metadata={_KEY: json.dumps(description)})
        file.replace(target)


def load_similarity(model: _Model, path: str | os.PathLike[str]) -> _Model:
    """Read a file of :func:`save_similarity` into the model, in place, and return the model.

    Layers that have no similarity yet get one. If anything does not fit, the error names the
    layers and the model is as it was.
    """
    description, tensors = _read(path)
    layers: dict[str, dict[str, Any]] = description["layers"]
    modules = dict(model.named_modules())
    problems = [p for name, saved in layers.items() for p in _misfit(name, saved, modules)]
    extra = [n for n, m in modules.items() if layer_similarities(m) and n not in layers]
    problems += [f"{name!r} has a similarity that the file lacks" for name in extra]
    if problems:
        raise FileFormatError(
            f"load_similarity: expected a model that fits {str(path)!r}, got {len(problems)} "
            f"layer(s) that do not: {'; '.join(problems)}. Build the model the file was saved "
            f"from, or attach to the layers it names."
        )
    fresh = {
        name: (config := _config(saved), config.prepare(modules[name], name or "model"))
        for name, saved in layers.items()
        if not layer_similarities(modules[name])
    }
    pairs = []
    for name in layers:
        present = fresh[name][1] if name in fresh else layer_similarities(modules[name])
        for key, parameter in _numbers(name, present):
            pairs.append((parameter, _tensor(path, tensors, key, parameter)))
    with torch.no_grad():
        for parameter, value in pairs:
            parameter.copy_(value)
    for name, (config, made) in fresh.items():
        config.apply(modules[name], made)
    return model


def _describe(module: nn.Module) -> dict[str, Any]:
    """How the layer's similarities are built, and the fingerprint of the layer itself."""
    first = next(iter(layer_similarities(module).values()))
    matrix = not hasattr(module, "kernel_size")
    return {
        "structure": first.structure.to_config(),
        "scope": first.scope,
        "block_size": first.block_size if matrix else None,
        "fingerprint": _fingerprint(module),
    }


def _fingerprint(module: nn.Module) -> dict[str, Any]:
    """The class of a layer and the shapes of its weights, as they are without similarity."""
    cls = stock_type(module)
    return {
        "class": getattr(cls, "stock_class", cls).__name__,
        "groups": getattr(module, "groups", 1),
        "weights": {
            name: list(layout.stored) for name, layout in kernel_layouts(module, None, "layer")
        },
    }


def _config(saved: dict[str, Any]) -> StaticSimilarity:
    structure = structures.from_config(saved["structure"])
    return StaticSimilarity(structure, saved["scope"], saved["block_size"])


def _misfit(name: str, saved: dict[str, Any], modules: dict[str, nn.Module]) -> Iterator[str]:
    """Why a saved layer does not fit the model, if it does not."""
    module = modules.get(name)
    if module is None or not can_attach(module):
        yield f"{name!r} is not a layer with a kernel here"
        return
    here = _fingerprint(module)
    if here != saved["fingerprint"]:
        yield f"{name!r} is {_text(here)} here and {_text(saved['fingerprint'])} in the file"
    elif layer_similarities(module) and _describe(module) != saved:
        yield f"{name!r} has another structure, scope or block size here than in the file"


def _text(fingerprint: dict[str, Any]) -> str:
    shapes = ", ".join(f"{name} {tuple(s)}" for name, s in fingerprint["weights"].items())
    return f"{fingerprint['class']} with {shapes}, groups {fingerprint['groups']}"


def _numbers(
    layer: str, similarities: dict[str, SimilarityParametrization]
) -> Iterator[tuple[str, Tensor]]:
    for weight, parametrization in similarities.items():
        for name, parameter in parametrization.numbers.items():
            yield f"{layer}.{weight}.{name}".lstrip("."), parameter


def _read(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    if not Path(path).is_file():
        raise FileNotFoundError(
            f"load_similarity: expected a file, got {str(path)!r}, which is none."
        )
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise FileFormatError(
            f"load_similarity: expected a safetensors file, got {str(path)!r}, which cannot be "
            f"read ({error}). It is damaged or of another kind. Save it again."
        ) from error
    try:
        description = json.loads(metadata[_KEY])
        if description["version"] != _VERSION:
            raise FileFormatError(
                f"load_similarity: expected version {_VERSION} of the format, got "
                f"{description['version']} in {str(path)!r}. Update neural-similarity."
            )
        for saved in description["layers"].values():
            _config(saved), saved["fingerprint"]["weights"]
    except FileFormatError:
        raise
    except (KeyError, TypeError, AttributeError, ValueError, NeuralSimilarityError) as error:
        raise FileFormatError(
            f"load_similarity: expected a file written by save_similarity, got {str(path)!r}, "
            f"whose description is missing or unknown ({type(error).__name__}: {error})."
        ) from error
    return description, tensors


def _tensor(
    path: str | os.PathLike[str], tensors: dict[str, Tensor], key: str, like: Tensor
) -> Tensor:
    tensor = tensors.get(key)
    if tensor is None or tensor.shape != like.shape:
        got = "nothing" if tensor is None else str(tuple(tensor.shape))
        raise FileFormatError(
            f"load_similarity: expected {key!r} of shape {tuple(like.shape)} in {str(path)!r}, got "
            f"{got}. The file does not keep what it describes. Save it again."
        )
    return tensor
