"""Put a similarity on the layers of any model."""

from __future__ import annotations

import warnings
from dataclasses import replace
from math import prod
from typing import Any, TypeVar

import torch
from torch import nn

from ..errors import AttachError, SkippedLayerWarning
from ..nn.dynamic import DynamicLayer, DynamicSimilarity
from ..nn.inventory import similarities_by_name
from ..nn.layouts import CONVOLUTIONS
from ..nn.names import DEFAULT_NAME, check_name
from ..nn.static import StaticSimilarity
from ..nn.targets import check_pattern
from .select import ALL_CONV, select
from .shared_weights import refuse_shared_weights, stock_weights
from .switch import set_similarity
from .wrappers import refuse_late_parameters, reshard, unwrapped

__all__ = ["attach", "other_kind"]

_Model = TypeVar("_Model", bound=nn.Module)
_TYPES = {torch.float16, torch.bfloat16, torch.float32, torch.float64}


def attach(
    model: _Model, config: StaticSimilarity | DynamicSimilarity, name: str = DEFAULT_NAME
) -> _Model:
    """Attach a similarity, in place, to the layers that ``config`` selects, and return the model.

    Structures start at the identity, so outputs do not change (except for ``dilated``, and for
    ``sparse`` with fewer than one entry per row: they remove taps). The weights do not change.
    :func:`neural_similarity.merge` removes a static similarity again. A dynamic one turns the layer
    into its dynamic version. Subclasses of convolutions have one too if their ``forward`` only pads
    the input with zeros and convolves, as for TensorFlow's ``"same"`` padding in many pretrained
    networks.

    Where ``config.target_modules`` is None, the network decides: a regular expression in its
    attribute ``similarity_layers`` selects the layers. A network without it gets a similarity on
    all convolutions. Convolutions with a single tap are then skipped with a
    :class:`SkippedLayerWarning`, because one tap can learn nothing but a gain.

    A model can have several similarities with different names. Exactly one is active: the one
    attached last, until :func:`neural_similarity.set_similarity` chooses another. A layer has
    either static or dynamic ones.

    A model with a static similarity cannot be pickled whole, as PyTorch's parametrizations cannot:
    save its ``state_dict()``, or the similarities alone with ``save_similarity``.

    Args:
        model: any model.
        config: what M may be, and where it goes.
        name: of this similarity. It is part of the keys of the ``state_dict``, unless it is the
            default name.

    Raises:
        AttachError: no layer matches, a layer has a similarity of this name or of the other kind
            already, a layer has no dynamic version, layers share a weight and the similarity is
            static, or DDP or ``fully_shard`` already have the layers. The model is unchanged.

    Example:
        >>> import torch
        >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3))
        >>> image = torch.randn(1, 3, 16, 16)
        >>> before = model(image)
        >>> torch.equal(attach(model, StaticSimilarity("diagonal"))(image), before)
        True
    """
    _check_arguments(model, config)
    check_name("attach", name)
    config = replace(config)  # files distinguish attachments by this object
    reshard(model)
    layers = _chosen_layers(model, config)
    _refuse_second_similarity(layers, config, name)
    _refuse_other_types(layers)
    refuse_late_parameters("attach", model, layers.values())
    if isinstance(config, StaticSimilarity):
        refuse_shared_weights("attach", model, stock_weights(layers.values()), AttachError)
    prepared: dict[str, Any] = dict(config.prepare(layers, name))
    for path, similarities in prepared.items():
        config.apply(layers[path], similarities, name)
    return set_similarity(model, name)


def other_kind(module: nn.Module, config: StaticSimilarity | DynamicSimilarity) -> str | None:
    """``"static"`` or ``"dynamic"``, if the layer has that kind and ``config`` is the other."""
    if not similarities_by_name(module):
        return None
    kind = "dynamic" if isinstance(module, DynamicLayer) else "static"
    new_kind = "dynamic" if isinstance(config, DynamicSimilarity) else "static"
    return kind if kind != new_kind else None


def _chosen_layers(
    model: nn.Module, config: StaticSimilarity | DynamicSimilarity
) -> dict[str, nn.Module]:
    target = config.target_modules
    if target is None:
        model = unwrapped(model)
        target = getattr(model, "similarity_layers", ALL_CONV)
        check_pattern("attach", f"{type(model).__name__}.similarity_layers", target)
    layers = select(model, target, config.exclude_modules)
    if target == ALL_CONV and config.skips_single_taps:
        return _without_single_taps(layers)
    return layers


def _check_arguments(model: object, config: object) -> None:
    if not isinstance(model, nn.Module):
        raise AttachError(f"attach: expected model to be an nn.Module, got {type(model).__name__}.")
    if not isinstance(config, StaticSimilarity | DynamicSimilarity):
        raise AttachError(
            f"attach: expected a StaticSimilarity or DynamicSimilarity, got {config!r}. For "
            f'example: attach(model, StaticSimilarity("diagonal")).'
        )


def _without_single_taps(layers: dict[str, nn.Module]) -> dict[str, nn.Module]:
    single = [
        path or "model"
        for path, module in layers.items()
        if isinstance(module, CONVOLUTIONS) and prod(module.kernel_size) == 1
    ]
    others = {path: module for path, module in layers.items() if (path or "model") not in single}
    if not others:
        raise AttachError(
            f"attach: expected a convolution with more than one tap, got only 1×1 kernels "
            f"({_some(single)}). One tap can learn nothing but a gain. If you want that, name them "
            f"in target_modules, or use scope 'full'."
        )
    if single:
        warnings.warn(
            f"attach: skipped {len(single)} layer(s) with a 1×1 kernel ({_some(single)}): one tap "
            f"can learn nothing but a gain. Name them in target_modules to attach anyway, or in "
            f"exclude_modules to silence this warning.",
            SkippedLayerWarning,
            stacklevel=4,
        )
    return others


def _refuse_second_similarity(
    layers: dict[str, nn.Module], config: StaticSimilarity | DynamicSimilarity, name: str
) -> None:
    for path, module in layers.items():
        if name in similarities_by_name(module):
            raise AttachError(
                f"attach: expected layers without a similarity named {name!r}, got "
                f"{_layer(path)}, which already has one. Detach or merge first, attach under "
                f"another name, or choose other layers with target_modules or exclude_modules."
            )
        if kind := other_kind(module, config):
            raise AttachError(
                f"attach: expected layers with similarities of one kind, got {_layer(path)}, "
                f"which has a {kind} similarity. A layer can have static or dynamic similarities, "
                f"not both. Detach or merge first, or choose other layers with target_modules or "
                f"exclude_modules."
            )


def _refuse_other_types(layers: dict[str, nn.Module]) -> None:
    for path, module in layers.items():
        for weight in stock_weights([module]):
            if weight.dtype not in _TYPES:
                raise AttachError(
                    f"attach: expected weights of float16, bfloat16, float32 or float64, got "
                    f"{weight.dtype} in {_layer(path)}. Attach before quantisation, or name the "
                    f"layer in exclude_modules."
                )


def _layer(path: str) -> str:
    return f"layer {path!r}" if path else "the model"


def _some(names: list[str], most: int = 4) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
