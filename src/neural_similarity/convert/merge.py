"""Write static similarities into the weights: a plain network again, checked equal."""

from __future__ import annotations

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
    the weights are the same ``Parameter`` objects as before (parametrizations of others on other
    tensors stay). Each layer's output on random input is computed as it is and as it will be; if
    any differs beyond rounding, nothing is changed.
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
        _check_merged(name or "model", module)
    for module in attached.values():
        _merge_layer(module)
    _merged.update(model.modules())
    return model


def effective_state_dict(model: nn.Module) -> dict[str, Tensor]:
    """The ``state_dict`` that :func:`merge` would leave, without changing the model.

    It loads into the stock network: ``plain.load_state_dict(effective_state_dict(model))``.
    """
    state = model.state_dict()
    for path, module in model.named_modules(remove_duplicate=False):
        prefix = f"{path}." if path else ""
        for weight in static_similarities(module):
            inside = f"{prefix}parametrizations.{weight}."
            for key in [key for key in state if key.startswith(inside)]:
                del state[key]
            state[prefix + weight] = _effective(module, weight)
    return state


def _effective(module: nn.Module, weight: str) -> Tensor:
    """The weight as the layer uses it, computed now: ``parametrize.cached`` may hold an old one."""
    parametrization = module.get_submodule(f"parametrizations.{weight}")
    with torch.no_grad():
        value: Tensor = parametrization()
    return value.detach()


def _check_merged(name: str, module: nn.Module) -> None:
    """Raise unless a plain layer with the merged weights gives the layer's output."""
    try:
        before, after = probe_output(module), probe_output(_plain_twin(module))
    except Exception as error:
        raise MergeError(
            f"merge: expected layer {name!r} to run on a random input of its size, got "
            f"{type(error).__name__}: {error}. It cannot be checked, so it is not merged. The "
            f"model is unchanged."
        ) from error
    scale = before.abs().max().clamp(min=torch.finfo(before.dtype).tiny)
    difference = ((after - before).abs().max() / scale).item()
    tolerance = _TOLERANCE.get(before.dtype, 1e-5)
    if not difference <= tolerance:  # also catches NaN
        raise MergeError(
            f"merge: expected layer {name!r} to give the same output after merging, got a "
            f"relative difference of {difference:.3g}, above {tolerance:.3g} for {before.dtype}. "
            f"Its similarity is not a fixed function of its parameters, or its numbers are not "
            f"finite. The model is unchanged."
        )


def _plain_twin(module: nn.Module) -> nn.Module:
    """The layer as merging will leave it, beside the layer; nothing is copied but weights."""
    cls = _merged_type(module)
    twin = cls.__new__(cls)
    twin.__dict__.update(nn.Module().__dict__)
    twin.__dict__.update({k: v for k, v in module.__dict__.items() if not k.endswith("hooks")})
    twin._modules = {k: v for k, v in module._modules.items() if k != "parametrizations"}
    twin._parameters = dict(module._parameters)
    for name, _ in module.get_submodule("parametrizations").named_children():
        twin._parameters[name] = nn.Parameter(_effective(module, name), requires_grad=False)
    if isinstance(twin, nn.RNNBase):
        twin._init_flat_weights()
    return twin


def _merged_type(module: nn.Module) -> type[nn.Module]:
    """The class that merging leaves: the stock one, unless the layer does more than that one."""
    cls: type[nn.Module] = type(module).__bases__[0]  # below the one that parametrize made
    stock: type[nn.Module] = vars(cls).get("stock_class", cls)  # subclasses of ours stay
    return stock if stock.forward is cls.forward else cls


def _merge_layer(module: nn.Module) -> None:
    own_class(module)
    left = _merged_type(module)
    for weight, similarity in static_similarities(module).items():
        value = _effective(module, weight)
        if similarity.handle is not None:
            similarity.handle.remove()
        parametrize.remove_parametrizations(module, weight, leave_parametrized=False)
        with torch.no_grad():
            module.get_parameter(weight).set_(value)  # type: ignore[call-overload]
    if not parametrize.is_parametrized(module):  # by others, on other tensors
        module.__class__ = left
    if isinstance(module, nn.RNNBase):
        module._init_flat_weights()
