"""What ``merge(model, keep=True)`` remembers, outside the model, and ``unmerge`` restores."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from ..errors import MergeError
from ..nn.inventory import activate, active_name, similarities_by_name
from ..nn.parametrization import SimilarityParametrization, put_on
from .shared_weights import refuse_shared_weights

__all__ = ["check_can_keep", "forget_layer", "keep_layer", "kept_names", "unmerge"]

_Model = TypeVar("_Model", bound=nn.Module)


@dataclass(frozen=True)
class _KeptLayer:
    """One layer as it was before it was merged."""

    cls: type[nn.Module]
    originals: dict[str, Tensor]
    requires_grad: dict[str, bool]
    similarities: dict[str, dict[str, SimilarityParametrization]]
    active: str | None


# By layer, so that a merged network has no attribute or module of this library.
_kept_layers: weakref.WeakKeyDictionary[nn.Module, _KeptLayer] = weakref.WeakKeyDictionary()


def unmerge(model: _Model) -> _Model:
    """Undo the last :func:`neural_similarity.merge` with ``keep=True``; return the model.

    Weights, similarities of every name, the active one and ``requires_grad`` are exactly as they
    were, and the weights are the same ``Parameter`` objects.

    Raises:
        MergeError: the model was not merged with ``keep=True``, or has changed since. The model
            is unchanged.

    Example:
        >>> import torch
        >>> import neural_similarity as ns
        >>> model = ns.attach(nn.Sequential(nn.Conv2d(3, 8, 3)), ns.StaticSimilarity())
        >>> before = model.state_dict()
        >>> after = unmerge(ns.merge(model, keep=True)).state_dict()
        >>> all(torch.equal(after[key], tensor) for key, tensor in before.items())
        True
    """
    layers = {path: module for path, module in model.named_modules() if module in _kept_layers}
    if not layers:
        raise MergeError(
            "unmerge: expected a model merged with merge(model, keep=True), got one without kept "
            "similarities. A copy of a merged model does not have them either."
        )
    for path, module in layers.items():
        _check_unchanged(path or "model", module)
    weights = [m.get_parameter(name) for m in layers.values() for name in _kept_layers[m].originals]
    refuse_shared_weights("unmerge", model, weights, MergeError)
    for module in layers.values():
        _restore(module, _kept_layers.pop(module))
    return model


def check_can_keep(path: str, module: nn.Module) -> None:
    """Raise if a weight has another parametrization on top of its similarity."""
    lists: Any = module.get_submodule("parametrizations")
    for weight in next(iter(similarities_by_name(module).values())):
        for other in lists[weight]:
            if not isinstance(other, SimilarityParametrization):
                raise MergeError(
                    f"merge: expected {weight} of layer {path!r} to have only similarities, got a "
                    f"{type(other).__name__} as well. unmerge could not restore it. Remove it "
                    f"first, or merge with keep=False. The model is unchanged."
                )


def keep_layer(
    module: nn.Module, similarities: dict[str, dict[str, SimilarityParametrization]]
) -> None:
    """Remember a layer that is about to be merged."""
    weights = {
        weight: module.get_parameter(f"parametrizations.{weight}.original")
        for weight in next(iter(similarities.values()))
    }
    active = active_name(module)
    _kept_layers[module] = _KeptLayer(
        cls=type(module).__bases__[0],  # below the one that parametrize made
        originals={
            # Without an active similarity the merged weight is the original, so keep a copy.
            name: weight.detach().clone() if active is None else weight.detach()
            for name, weight in weights.items()
        },
        requires_grad={name: weight.requires_grad for name, weight in weights.items()},
        similarities=similarities,
        active=active,
    )


def forget_layer(module: nn.Module) -> None:
    """Drop what an earlier merge remembered about a layer."""
    _kept_layers.pop(module, None)


def kept_names(model: nn.Module) -> set[str]:
    """The names of the similarities that :func:`unmerge` would restore."""
    layers = (_kept_layers[module] for module in model.modules() if module in _kept_layers)
    return {name for layer in layers for name in layer.similarities}


def _check_unchanged(path: str, module: nn.Module) -> None:
    """Raise if restoring the layer would lose something."""
    if similarities_by_name(module):
        raise MergeError(
            f"unmerge: expected layer {path!r} as merge left it, got one with a new similarity. "
            f"The model is unchanged."
        )
    kept_layer = _kept_layers[module]
    for name, original in kept_layer.originals.items():
        parameter = module._parameters.get(name)
        if parameter is None or parameter.shape != original.shape:
            raise MergeError(
                f"unmerge: expected {name} of layer {path!r} as merge left it, got one that was "
                f"replaced or parametrized since. Undo that first. The model is unchanged."
            )
        expected, weight = original, parameter.detach()
        for similarities in kept_layer.similarities.values():
            with torch.no_grad():  # those that are not active return the weight unchanged
                expected = similarities[name](expected)
        eps = max(torch.finfo(original.dtype).eps, torch.finfo(weight.dtype).eps)
        tolerance = 4 * eps * float(expected.abs().max())
        if not torch.allclose(weight.to(expected), expected, rtol=0, atol=tolerance):
            raise MergeError(
                f"unmerge: expected {name} of layer {path!r} as merge left it, got other values. "
                f"Restoring the original would lose what was trained or loaded since. The model is "
                f"unchanged."
            )


def _restore(module: nn.Module, kept_layer: _KeptLayer) -> None:
    if not parametrize.is_parametrized(module):  # by others, on other tensors
        module.__class__ = kept_layer.cls
    for name, original in kept_layer.originals.items():
        weight = module.get_parameter(name)
        with torch.no_grad():
            weight.set_(original.to(weight))  # type: ignore[call-overload]
        weight.requires_grad_(kept_layer.requires_grad[name])
        for similarities in kept_layer.similarities.values():
            similarities[name].to(weight.device, weight.dtype)
    for similarities in kept_layer.similarities.values():
        put_on(module, similarities)
    activate(module, kept_layer.active)
