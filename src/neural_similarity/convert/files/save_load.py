"""Similarity-only files: a few kilobytes of safetensors that turn one backbone into many models.

A file holds the parameters of every M, how each M is built, and the shapes of the weights they were
learned for. It holds no weights and no code.
"""

from __future__ import annotations

import os
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from ...errors import AttachError, FileFormatError
from ...nn.inventory import active_name, similarities_by_name
from ...nn.layouts import stock_parameter
from ...nn.names import DEFAULT_NAME, check_name
from ...nn.positions import PositionSimilarity
from ...nn.static import StaticSimilarity
from ..norm_statistics import warn_of_changed_statistics
from ..shared_weights import refuse_shared_weights, stock_weights
from ..switch import check_attached, list_similarities, refuse_merged, set_similarity
from ..wrappers import is_sharded, refuse_late_parameters, reshard, unwrapped, whole
from .fit import config_of, refuse_misfits, similarity_of
from .format import (
    Config,
    config_from,
    fingerprint,
    read_file,
    saved_tensor,
    tensors_of,
    write_file,
)

__all__ = ["load_similarity", "save_similarity"]

_Model = TypeVar("_Model", bound=nn.Module)


def save_similarity(
    model: nn.Module, path: str | os.PathLike[str], name: str | None = None
) -> None:
    """Write one similarity of the model, and nothing else, to a safetensors file.

    The file appears whole or not at all. It contains neither the name of the similarity nor the
    prefixes that ``torch.compile`` or ``DataParallel`` add to the names of layers. After
    ``fully_shard`` all processes must call it together, and each writes the file.

    A :class:`ChangedStatisticsWarning` says that BatchNorm of a frozen network has changed since
    :func:`freeze_backbone`: the file fits this network, but not the original one.

    Args:
        model: with an attached similarity.
        path: the file.
        name: of the similarity; None means the active one.

    Example:
        A network adapted to three tasks is one backbone and three files of kilobytes.

        >>> import copy, tempfile
        >>> import neural_similarity as ns
        >>> backbone, folder = ns.create_model("cnn4", num_classes=0), tempfile.mkdtemp()
        >>> model = copy.deepcopy(backbone)
        >>> for task in ("birds", "cars", "flowers"):
        ...     _ = ns.attach(model, ns.StaticSimilarity("diagonal"), name=task)
        ...     _ = ns.freeze_backbone(model, also_train=[])     # and train these 36 parameters
        ...     ns.save_similarity(model, f"{folder}/{task}.safetensors")
        >>> for task in ("birds", "cars", "flowers"):
        ...     _ = ns.load_similarity(backbone, f"{folder}/{task}.safetensors", name=task)
        >>> _ = ns.set_similarity(backbone, "cars")
    """
    model = unwrapped(model)
    reshard(model)
    _refuse_global(model)
    layers = _layers_to_save(model, name)
    configs: list[Config] = []  # layers of one attachment may share a predictor
    table = {}
    for path_in_model, (own_name, module) in layers.items():
        config = config_of(path_in_model, module, own_name)
        if not any(config is other for other in configs):
            configs.append(config)
        place = next(i for i, other in enumerate(configs) if other is config)
        table[path_in_model] = {"attachment": place, "fingerprint": fingerprint(module)}
    own = {
        key: tensor
        for path_in_model, (own_name, module) in layers.items()
        for key, tensor in tensors_of(path_in_model, similarities_by_name(module)[own_name])
    }
    _refuse_meta("save_similarity", own)
    tensors = {key: whole(t.detach()).cpu().clone().contiguous() for key, t in own.items()}
    write_file(path, configs, table, tensors)
    warn_of_changed_statistics(model)


def load_similarity(
    model: _Model, path: str | os.PathLike[str], name: str = DEFAULT_NAME
) -> _Model:
    """Read a file of :func:`save_similarity` into the model, in place, and return the model.

    Layers that have no similarity of this name yet get one. It becomes the active one, and
    similarities of other names do not change. If anything does not fit, the error names the layers
    and the model is unchanged. Layers that DDP or ``fully_shard`` already have get no new one.

    Args:
        model: the network that the file was saved from, with or without similarities.
        path: the file.
        name: of the similarity in this model.
    """
    check_name("load_similarity", name)
    description, tensors = read_file(path)
    layers: dict[str, dict[str, Any]] = description["layers"]
    inner = unwrapped(model)
    reshard(inner)
    refuse_merged("load_similarity", inner)
    modules = dict(inner.named_modules())
    refuse_misfits(path, description, modules, name)
    missing = [modules[n] for n in layers if not similarity_of(modules[n], name)]
    refuse_late_parameters("load_similarity", model, missing)
    prepared = _prepare_missing(path, description, modules, name)
    static = [modules[n] for n, (c, _) in prepared.items() if isinstance(c, StaticSimilarity)]
    refuse_shared_weights("load_similarity", inner, stock_weights(static), AttachError)
    pairs, own = [], {}
    for layer in layers:
        similarities = (
            prepared[layer][1] if layer in prepared else similarity_of(modules[layer], name)
        )
        for key, tensor in tensors_of(layer, similarities):
            own[key] = tensor
            pairs.append((tensor, saved_tensor(path, tensors, key, tensor)))
    _refuse_meta("load_similarity", own)
    _refuse_overflow(path, pairs)
    _refuse_conflicts(path, pairs)
    with torch.no_grad():
        for tensor, value in pairs:
            tensor.copy_(_spread(value, tensor) if is_sharded(tensor) else value)
    for layer, (config, similarities) in prepared.items():
        config.apply(modules[layer], similarities, name)
    set_similarity(inner, name)
    return model


def _spread(value: Tensor, like: Tensor) -> Tensor:
    """A value that every process has, divided among them as a sharded tensor is."""
    from torch.distributed.tensor import DTensor, distribute_tensor  # slow to import

    assert isinstance(like, DTensor)
    placed = value.to(like.dtype).to(like.device_mesh.device_type)
    return distribute_tensor(placed, like.device_mesh, like.placements, src_data_rank=None)


def _refuse_meta(where: str, tensors: dict[str, Tensor]) -> None:
    for key, tensor in tensors.items():
        if tensor.is_meta:
            raise AttachError(
                f"{where}: expected similarities with values, got {key!r} on the meta device. "
                f"Load a checkpoint that has them with load_state_dict(state, assign=True) first."
            )


def _refuse_overflow(path: str | os.PathLike[str], pairs: list[tuple[Tensor, Tensor]]) -> None:
    """Raise if a value of the file is too large for the dtype of the model."""
    for tensor, value in pairs:
        if value.is_floating_point() and not value.to(tensor.dtype).isfinite().all():
            raise FileFormatError(
                f"load_similarity: expected values that {tensor.dtype} can hold, got up to "
                f"{value.abs().max().item():.3g} in {str(path)!r}. Convert the model to "
                f"{value.dtype} first."
            )


def _layers_to_save(model: nn.Module, name: str | None) -> dict[str, tuple[str, nn.Module]]:
    """The layers with the active similarity, or with the named one, and its name in each."""
    if name is not None:
        check_attached("save_similarity", model, name)
    layers = {}
    for path, module in model.named_modules():
        own_name = active_name(module) if name is None else name
        if own_name in similarities_by_name(module):
            assert own_name is not None
            layers[path] = (own_name, module)
    if not layers and (names := list_similarities(model)):
        raise AttachError(
            f"save_similarity: expected an active similarity, got none of "
            f"{', '.join(map(repr, names))} active. Pass name=..., or call set_similarity first."
        )
    if not layers:
        raise AttachError(
            "save_similarity: expected a model with an attached similarity, got one without. "
            "Call attach first; after merge there is nothing left to save."
        )
    return layers


def _prepare_missing(
    path: str | os.PathLike[str],
    description: dict[str, Any],
    modules: dict[str, nn.Module],
    name: str,
) -> dict[str, tuple[Any, dict[str, Any]]]:
    """Similarities for the layers of the file that have none yet; not attached."""
    prepared: dict[str, tuple[Any, dict[str, Any]]] = {}
    for place, saved in enumerate(description["attachments"]):
        config = config_from(saved)
        layers = [n for n, layer in description["layers"].items() if layer["attachment"] == place]
        present = [layer for layer in layers if similarity_of(modules[layer], name)]
        missing = {layer: modules[layer] for layer in layers if layer not in present}
        if missing and present and getattr(config, "shared", False):
            raise FileFormatError(
                f"load_similarity: expected either all or none of the layers that share a "
                f"predictor to have it, got {', '.join(present)} with it and {', '.join(missing)} "
                f"without it. Load into a model without similarities."
            )
        try:
            similarities = config.prepare(missing, name)
        except (ArithmeticError, LookupError, MemoryError, RuntimeError, TypeError) as error:
            # Options that no structure or predictor would have written.
            raise FileFormatError(
                f"load_similarity: expected similarities that can be built from {str(path)!r}, got "
                f"{type(error).__name__}: {' '.join(str(error).split())}. Save it again."
            ) from error
        for layer, parts in similarities.items():
            weight = stock_parameter(modules[layer])
            for part in parts.values():  # so that what overflows is seen
                part.to(weight.device, weight.dtype)
            prepared[layer] = (config, parts)
    return prepared


def _refuse_conflicts(path: str | os.PathLike[str], pairs: list[tuple[Tensor, Tensor]]) -> None:
    """Raise if layers share a predictor here and have separate ones in the file."""
    values: dict[int, Tensor] = {}
    for tensor, value in pairs:
        first = values.setdefault(id(tensor), value)
        if first.dtype != value.dtype or not torch.equal(first, value):
            raise FileFormatError(
                f"load_similarity: expected predictors shared as in {str(path)!r}, got layers that "
                f"share one where the file has two. Attach in the same way as before saving, or "
                f"load into a model without similarities."
            )


def _refuse_global(model: nn.Module) -> None:
    """Raise if the model has global similarities: a file without them would lose parameters."""
    paths = [path for path, m in model.named_modules() if isinstance(m, PositionSimilarity)]
    if paths:
        raise AttachError(
            f"save_similarity: expected similarities that attach can create again, got the global "
            f"similarity {paths[0]!r}. It is built into the model. Save the model's state_dict."
        )
