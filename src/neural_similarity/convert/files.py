"""Similarity-only files: a few kilobytes of safetensors that turn one backbone into many models.

A file holds the numbers behind every M, how each M is built, and the shapes of the weights they
were learned for. It holds no weights and no code.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from .. import structures
from .._io import whole_file
from ..errors import AttachError, FileFormatError, NeuralSimilarityError
from ..nn.dynamic import DynamicLayer
from ..nn.dynamic_similarity import DynamicSimilarity
from ..nn.inventory import Similarity, layer_similarities, static_similarities
from ..nn.layouts import can_attach, kernel_layouts, stock_type
from ..nn.positions import PositionSimilarity
from ..nn.predictors import TwoLayers
from ..nn.static import StaticSimilarity
from .attach import refuse_shared_weights

__all__ = ["load_similarity", "save_similarity"]

_Model = TypeVar("_Model", bound=nn.Module)
Config = StaticSimilarity | DynamicSimilarity
_KEY, _VERSION = "neural_similarity", 1


def save_similarity(model: nn.Module, path: str | os.PathLike[str]) -> None:
    """Write every similarity of the model, and nothing else, to a safetensors file.

    The file appears whole or not at all. What ``torch.compile`` or ``DataParallel`` wrapped around
    the model is left out.
    """
    model = _unwrapped(model)
    _refuse_global(model)
    layers = {name: m for name, m in model.named_modules() if layer_similarities(m)}
    if not layers:
        raise AttachError(
            "save_similarity: expected a model with an attached similarity, got one without. "
            "Call attach first; after merge there is nothing left to save."
        )
    configs: list[Config] = []  # layers of one attachment may share a predictor
    table = {}
    for name, module in layers.items():
        config = _config_of(name, module)
        if not any(config is known for known in configs):
            configs.append(config)
        place = next(i for i, known in enumerate(configs) if known is config)
        table[name] = {"attachment": place, "fingerprint": _fingerprint(module)}
    tensors = {
        key: tensor.detach().cpu().clone().contiguous()
        for name, module in layers.items()
        for key, tensor in _numbers(name, layer_similarities(module))
    }
    description = {
        "version": _VERSION,
        "attachments": [config.to_config() for config in configs],
        "layers": table,
    }
    metadata = {_KEY: json.dumps(description)}
    with whole_file(path) as file:  # save_file would let nobody but its owner read it
        file.write_bytes(save(tensors, metadata=metadata))


def load_similarity(model: _Model, path: str | os.PathLike[str]) -> _Model:
    """Read a file of :func:`save_similarity` into the model, in place, and return the model.

    Layers that have no similarity yet get one. If anything does not fit, the error names the
    layers and the model is as it was.
    """
    description, tensors = _read(path)
    layers: dict[str, dict[str, Any]] = description["layers"]
    inner = _unwrapped(model)
    modules = dict(inner.named_modules())
    attachments = description["attachments"]
    problems = [
        problem
        for name, saved in layers.items()
        for problem in _misfit(name, saved, attachments[saved["attachment"]], modules)
    ]
    extra = [n for n, m in modules.items() if layer_similarities(m) and n not in layers]
    problems += [f"{name!r} has a similarity that the file lacks" for name in extra]
    if problems:
        raise FileFormatError(
            f"load_similarity: expected a model that fits {str(path)!r}, got {len(problems)} "
            f"layer(s) that do not: {'; '.join(problems)}. Build the model the file was saved "
            f"from, or attach to the layers it names."
        )
    missing = {name: modules[name] for name in layers if not layer_similarities(modules[name])}
    refuse_shared_weights("load_similarity", inner, missing)
    made = _prepare_missing(description, modules)
    pairs = []
    for name in layers:
        present = made[name][1] if name in made else layer_similarities(modules[name])
        for key, tensor in _numbers(name, present):
            pairs.append((tensor, _tensor(path, tensors, key, tensor)))
    _refuse_lost_numbers(path, pairs)
    with torch.no_grad():
        for tensor, value in pairs:
            tensor.copy_(value)
    for name, (config, similarities) in made.items():
        config.apply(modules[name], similarities)
    return model


def _unwrapped(model: nn.Module) -> nn.Module:
    """The model itself: what is wrapped around it is put before the names of its layers."""
    while True:
        if isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
            model = model.module
        elif isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):
            model = inner
        else:
            return model


def _refuse_lost_numbers(path: str | os.PathLike[str], pairs: list[tuple[Tensor, Tensor]]) -> None:
    """One predictor shared here must be one in the file too."""
    values: dict[int, Tensor] = {}
    for tensor, value in pairs:
        known = values.setdefault(id(tensor), value)
        if not torch.allclose(known, value, rtol=0, atol=0, equal_nan=True):
            raise FileFormatError(
                f"load_similarity: expected predictors shared as in {str(path)!r}, got layers that "
                f"share one where the file has two. Attach as when the file was saved, or load "
                f"into a model without similarities."
            )


def _refuse_global(model: nn.Module) -> None:
    """A file without them would lose numbers that were trained beside the others."""
    names = [name for name, m in model.named_modules() if isinstance(m, PositionSimilarity)]
    if names:
        raise AttachError(
            f"save_similarity: expected similarities that attach can put back, got the global "
            f"similarity {names[0]!r}. It is built into the model. Save the model's state_dict."
        )


def _prepare_missing(
    description: dict[str, Any], modules: dict[str, nn.Module]
) -> dict[str, tuple[Any, dict[str, Any]]]:
    """Similarities for the layers of the file that have none yet; not attached."""
    made: dict[str, tuple[Any, dict[str, Any]]] = {}
    for place, saved in enumerate(description["attachments"]):
        config = _config(saved)
        missing = {
            name: modules[name]
            for name, layer in description["layers"].items()
            if layer["attachment"] == place and not layer_similarities(modules[name])
        }
        present = [
            name
            for name, layer in description["layers"].items()
            if layer["attachment"] == place and name not in missing
        ]
        if missing and present and getattr(config, "shared", False):
            raise FileFormatError(
                f"load_similarity: expected all layers that share a predictor to have it, or none, "
                f"got {', '.join(present)} with and {', '.join(missing)} without. Load into a "
                f"model without similarities."
            )
        for name, similarities in config.prepare(missing).items():
            made[name] = (config, similarities)
    return made


def _config_of(name: str, module: nn.Module) -> Config:
    """The configuration a layer's similarity was made by."""
    if not isinstance(module, DynamicLayer):
        config = next(iter(static_similarities(module).values())).config
        structures.resolve(structures.resolve(config.structure).name, "save_similarity")
        return config
    if isinstance(module.config, DynamicSimilarity):
        return module.config
    network = next(iter(module.predictions().values())).network
    if not isinstance(network, TwoLayers):
        raise AttachError(
            f"save_similarity: expected predictors of this library, got a {type(network).__name__} "
            f"in layer {name!r}, which a file cannot describe. Save model.state_dict() instead."
        )
    return DynamicSimilarity(module.structure, network.config, block_size=module.block_size)


def _fingerprint(module: nn.Module) -> dict[str, Any]:
    """The class of a layer and the shapes of its weights, as they are without similarity."""
    return {
        "class": stock_type(module).__name__,
        "groups": getattr(module, "groups", 1),
        "weights": {
            name: list(layout.stored) for name, layout in kernel_layouts(module, None, "layer")
        },
    }


def _config(saved: dict[str, Any]) -> Config:
    modes: dict[str, Any] = {"static": StaticSimilarity, "dynamic": DynamicSimilarity}
    config: Config = modes[saved["mode"]].from_config(saved)
    return config


def _misfit(
    name: str, saved: dict[str, Any], config: dict[str, Any], modules: dict[str, nn.Module]
) -> Iterator[str]:
    """Why a saved layer does not fit the model, if it does not."""
    module = modules.get(name)
    if module is None or not can_attach(module):
        yield f"{name!r} is not a layer with a kernel here"
        return
    here = _fingerprint(module)
    if here != saved["fingerprint"]:
        yield f"{name!r} is {_text(here)} here and {_text(saved['fingerprint'])} in the file"
    elif layer_similarities(module):
        attached = json.loads(json.dumps(_config_of(name, module).to_config()))
        differing = [key for key in config if attached.get(key) != config[key]]
        for key in differing:
            here_and_there = f"{attached.get(key)} here and {config[key]} in the file"
            yield f"the {key} of {name!r} is {here_and_there}"


def _text(fingerprint: dict[str, Any]) -> str:
    shapes = ", ".join(f"{name} {tuple(s)}" for name, s in fingerprint["weights"].items())
    return f"{fingerprint['class']} with {shapes}, groups {fingerprint['groups']}"


def _numbers(layer: str, similarities: Mapping[str, Similarity]) -> Iterator[tuple[str, Tensor]]:
    for name, similarity in similarities.items():
        for key, tensor in similarity.state_dict(keep_vars=True).items():
            yield f"{layer}.{name}.{key}".lstrip("."), tensor


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
        description = _validated(json.loads(metadata[_KEY]))
    except (LookupError, TypeError, AttributeError, ValueError, NeuralSimilarityError) as error:
        raise FileFormatError(
            f"load_similarity: expected a file written by save_similarity, got {str(path)!r}, "
            f"whose description is missing or unknown ({type(error).__name__}: {error})."
        ) from error
    return description, tensors


def _validated(description: dict[str, Any]) -> dict[str, Any]:
    """The description, if it is whole and this version can read it."""
    if description["version"] != _VERSION:
        raise ValueError(f"version {description['version']}, and this library reads {_VERSION}")
    configs = [_config(saved) for saved in description["attachments"]]
    if not description["layers"]:
        raise ValueError("no layers")
    for layer in description["layers"].values():
        if not 0 <= layer["attachment"] < len(configs):
            raise ValueError(f"attachment {layer['attachment']}")
        _text(layer["fingerprint"])
    return description


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
