"""Write static similarities into the weights: a plain network again, checked equal."""

from __future__ import annotations

import copy
import weakref
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from ..errors import MergeError
from ..nn._hooks import own_class
from ..nn.dynamic import DynamicLayer
from ..nn.inventory import static_similarities
from .probe import probe_output

__all__ = ["effective_state_dict", "merge"]

_Model = TypeVar("_Model", bound=nn.Module)

# Relative to the largest output. Both sides use the same kernel, so only the order of summation
# and one rounding to the dtype may differ.
_TOLERANCE = {
    torch.float64: 1e-12,
    torch.float32: 1e-5,
    torch.bfloat16: 2**-6,
    torch.float16: 2**-9,
}

# Merging leaves nothing of ours on a model, so what was merged is remembered here: merging it
# again is a no-op, while merging a model that never had a similarity is a mistake worth an error.
_merged: weakref.WeakSet[nn.Module] = weakref.WeakSet()


def merge(model: _Model) -> _Model:
    r"""Replace every attached weight by :math:`M^\top W`, in place, and return the model.

    Afterwards the layers have their stock classes and keys, nothing of this library is left, and
    the weights are the same ``Parameter`` objects as before. Each layer's output on random
    input is computed before and after; if any differs beyond rounding, nothing is changed.
    A second merge does nothing. Dynamic similarities stay as they are.

    Raises:
        MergeError: there is nothing to merge, or a layer's output would change.

    Example:
        >>> import neural_similarity as ns
        >>> model = nn.Sequential(nn.Conv2d(3, 8, 3))
        >>> type(merge(ns.attach(model, ns.StaticSimilarity()))[0])
        <class 'torch.nn.modules.conv.Conv2d'>
    """
    attached = {name: m for name, m in model.named_modules() if static_similarities(m)}
    if not attached and model in _merged:
        return model
    if not attached and any(isinstance(m, DynamicLayer) for m in model.modules()):
        raise MergeError(
            "merge: expected a static similarity, got only dynamic ones. They depend on the input, "
            "so no single kernel equals them. Export the network as it is."
        )
    if not attached:
        raise MergeError(
            "merge: expected a model with an attached similarity, got one without. Call "
            "neural_similarity.attach(model, config) first."
        )
    for name, module in attached.items():
        _check_merged_copy(name or "model", module)
    for module in attached.values():
        _merge_layer(module)
    _merged.add(model)
    return model


def effective_state_dict(model: nn.Module) -> dict[str, Tensor]:
    """The ``state_dict`` that :func:`merge` would leave, without changing the model.

    It loads into the stock network: ``plain.load_state_dict(effective_state_dict(model))``.
    """
    state: dict[str, Tensor] = {}
    attached = {name: m for name, m in model.named_modules() if static_similarities(m)}
    for key, value in model.state_dict().items():
        layer, _, rest = key.partition("parametrizations.")
        if layer.removesuffix(".") not in attached or not rest:
            state[key] = value
            continue
        weight = rest.partition(".")[0]
        with torch.no_grad():
            state[layer + weight] = getattr(attached[layer.removesuffix(".")], weight).detach()
    return state


def _check_merged_copy(name: str, module: nn.Module) -> None:
    """Raise unless a merged copy of the layer gives the layer's output."""
    before = probe_output(module)
    after = probe_output(_merge_layer(copy.deepcopy(module)))
    scale = before.abs().max().clamp(min=torch.finfo(before.dtype).tiny)
    difference = ((after - before).abs().max() / scale).item()
    tolerance = _TOLERANCE[before.dtype]
    if not difference <= tolerance:  # also catches NaN
        raise MergeError(
            f"merge: expected layer {name!r} to give the same output after merging, got a "
            f"relative difference of {difference:.3g}, above {tolerance:.3g} for {before.dtype}. "
            f"Its similarity is not a fixed function of its parameters, or its numbers are not "
            f"finite. The model is unchanged."
        )


def _merge_layer(module: nn.Module) -> nn.Module:
    own_class(module)
    for weight, parametrization in static_similarities(module).items():
        if parametrization.handle is not None:
            parametrization.handle.remove()
        parametrize.remove_parametrizations(module, weight, leave_parametrized=True)
    stock = getattr(type(module), "stock_class", None)
    if stock is not None:
        module.__class__ = stock
    if isinstance(module, nn.RNNBase):
        module._init_flat_weights()
    return module
