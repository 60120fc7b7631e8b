"""Put a similarity on the layers of any model."""

from __future__ import annotations

import warnings
from dataclasses import replace
from math import prod
from typing import Any, TypeVar

from torch import nn

from ..errors import AttachError, SkippedLayerWarning
from ..nn.dynamic_similarity import DynamicSimilarity
from ..nn.inventory import layer_similarities
from ..nn.layouts import CONVOLUTIONS
from ..nn.static import StaticSimilarity
from .select import ALL_CONV, select

__all__ = ["attach", "refuse_shared_weights"]

_Model = TypeVar("_Model", bound=nn.Module)


def attach(model: _Model, config: StaticSimilarity | DynamicSimilarity) -> _Model:
    """Attach a similarity, in place, to the layers that ``config`` names, and return the model.

    Every structure starts at the identity, so outputs are what they were (``dilated`` removes
    taps, and is the exception). The weights stay where they are. A static similarity leaves again
    by :func:`neural_similarity.merge`; a dynamic one turns the layer into its dynamic version.

    Convolutions with a single tap are passed over with a :class:`SkippedLayerWarning` unless
    ``target_modules`` names them: one tap has nothing to learn but a gain.

    A model with a static similarity cannot be pickled whole, as PyTorch's parametrizations cannot:
    save its ``state_dict()``, or the similarities alone by ``save_similarity``.

    Raises:
        AttachError: nothing matches, a layer has a similarity already, or two layers share one
            weight. The model is as it was.

    Example:
        >>> import torch
        >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3))
        >>> image = torch.randn(1, 3, 16, 16)
        >>> before = model(image)
        >>> torch.equal(attach(model, StaticSimilarity("diagonal"))(image), before)
        True
    """
    _check_arguments(model, config)
    config = replace(config)  # files tell attachments apart by this object
    chosen = select(model, config.target_modules, config.exclude_modules)
    if config.target_modules == ALL_CONV and config.skips_single_taps:
        chosen = _without_single_taps(chosen)
    _refuse_second_similarity(chosen)
    refuse_shared_weights("attach", model, chosen)
    prepared: dict[str, Any] = dict(config.prepare(chosen))
    for name, made in prepared.items():
        config.apply(chosen[name], made)
    return model


def _check_arguments(model: object, config: object) -> None:
    if not isinstance(model, nn.Module):
        raise AttachError(f"attach: expected model to be an nn.Module, got {type(model).__name__}.")
    if not isinstance(config, StaticSimilarity | DynamicSimilarity):
        raise AttachError(
            f"attach: expected a StaticSimilarity or DynamicSimilarity, got {config!r}. For "
            f'example: attach(model, StaticSimilarity("diagonal")).'
        )


def _without_single_taps(chosen: dict[str, nn.Module]) -> dict[str, nn.Module]:
    single = [
        name or "model"
        for name, module in chosen.items()
        if isinstance(module, CONVOLUTIONS) and prod(module.kernel_size) == 1
    ]
    kept = {name: module for name, module in chosen.items() if (name or "model") not in single}
    if not kept:
        raise AttachError(
            f"attach: expected a convolution with more than one tap, got only 1×1 kernels "
            f"({_some(single)}). One tap has nothing to learn but a gain. Name them in "
            f"target_modules if that is wanted, or use scope 'full'."
        )
    if single:
        warnings.warn(
            f"attach: passed over {len(single)} layer(s) with a 1×1 kernel ({_some(single)}): one "
            f"tap has nothing to learn but a gain. Name them in target_modules to attach all the "
            f"same, or in exclude_modules to silence this.",
            SkippedLayerWarning,
            stacklevel=3,
        )
    return kept


def _refuse_second_similarity(chosen: dict[str, nn.Module]) -> None:
    attached = [name or "model" for name, module in chosen.items() if layer_similarities(module)]
    if attached:
        raise AttachError(
            f"attach: expected layers without a similarity, got {_some(attached)}, attached "
            f"already. Merge first, or name other layers in target_modules or exclude_modules."
        )


def refuse_shared_weights(where: str, model: nn.Module, chosen: dict[str, nn.Module]) -> None:
    """Two layers with one weight would overwrite each other when merged."""
    owners: dict[int, list[str]] = {}
    for path, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            owners.setdefault(id(parameter), []).append(f"{path}.{name}" if path else name)
    for module in chosen.values():
        for name, parameter in module.named_parameters(recurse=False):
            names = owners[id(parameter)] if name.startswith("weight") else []
            if len(names) > 1:
                raise AttachError(
                    f"{where}: expected weights of one layer each, got {' and '.join(names)}, "
                    f"which are the same tensor. Merging one would change the other. Untie them, "
                    f"or exclude these layers."
                )


def _some(names: list[str], most: int = 4) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
