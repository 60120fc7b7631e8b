"""Write static similarities into the weights: a plain network again, checked equal."""

from __future__ import annotations

import copy
import weakref
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from ..errors import MergeError
from ..nn.dynamic import DynamicLayer
from ..nn.inventory import static_similarities
from ..nn.layer_hooks import own_class
from ..nn.parametrization import static_by_name
from .probe import evaluation, probe_output
from .shared_weights import refuse_shared_weights
from .switch import list_similarities
from .unmerge import check_can_keep, forget_layer, keep_layer
from .wrappers import is_sharded

__all__ = ["effective_state_dict", "merge", "merged_copy", "remove_all"]

_Model = TypeVar("_Model", bound=nn.Module)

# Relative to the largest output. Both sides use the same kernel, so only the order of summation
# and one rounding to the dtype may differ.
_TOLERANCE = {
    torch.float64: 1e-12,
    torch.float32: 1e-5,
    torch.bfloat16: 2**-6,
    torch.float16: 2**-9,
}

# Merging leaves nothing of this library on a model, so merged models are remembered here: merging
# one again does nothing, while merging a model that never had a similarity is an error.
_merged: weakref.WeakSet[nn.Module] = weakref.WeakSet()


def merge(model: _Model, keep: bool = False) -> _Model:
    r"""Merge the active similarity into the weights, in place, and return the model.

    Every weight W is replaced by :math:`M^\top W`.

    Afterwards the layers have their stock classes, keys and order of parameters, nothing of this
    library is left, and the weights are the same ``Parameter`` objects as before (parametrizations
    from elsewhere on other tensors stay). Each layer's output on random input is computed before
    and after; if any differs beyond rounding, nothing is changed. A second merge does nothing.

    Similarities that are not active are removed and lost: save them first, or use ``keep``. Dynamic
    similarities do not change.

    Args:
        model: with a static similarity.
        keep: remember the original weights and all similarities, outside of the model, so that
            :func:`neural_similarity.unmerge` can restore them. This needs as much memory again as
            the merged weights. A copy of the model does not have them.

    Raises:
        MergeError: there is nothing to merge, or a layer's output would change.

    Example:
        >>> import neural_similarity as ns
        >>> model = nn.Sequential(nn.Conv2d(3, 8, 3))
        >>> type(merge(ns.attach(model, ns.StaticSimilarity()))[0])
        <class 'torch.nn.modules.conv.Conv2d'>
    """
    layers = {path: m for path, m in model.named_modules() if static_by_name(m)}
    if not layers and model in _merged:
        return model
    _check_active(model, layers)
    originals = [
        module.get_submodule(f"parametrizations.{weight}").original
        for module in layers.values()
        for weights in static_by_name(module).values()
        for weight in weights
    ]
    refuse_shared_weights("merge", model, originals, MergeError)  # shared after attaching
    for path, module in layers.items():
        if keep:
            check_can_keep(path or "model", module)
        _check_merged(path or "model", module)
    for module in layers.values():
        if keep:
            keep_layer(module, static_by_name(module))
        remove_all(module, keep)
    _merged.update(model.modules())
    return model


def merged_copy(model: _Model) -> _Model:
    """A copy of any model; its static similarities, if any, are merged."""
    new_model = copy.deepcopy(model)
    if any(static_similarities(module) for module in new_model.modules()):
        merge(new_model)
    return new_model


def effective_state_dict(model: nn.Module) -> dict[str, Tensor]:
    """The ``state_dict`` that :func:`merge` would leave, without changing the model.

    It contains the active similarity, and loads into the stock network:
    ``plain.load_state_dict(effective_state_dict(model))``.
    """
    state = model.state_dict()
    for path, module in model.named_modules(remove_duplicate=False):
        similarities = static_by_name(module)
        if not similarities:
            continue
        prefix = f"{path}." if path else ""
        weights = next(iter(similarities.values()))
        inside = tuple(f"{prefix}parametrizations.{weight}." for weight in weights)
        own = {
            prefix + name: _effective(module, name) if name in weights else state[prefix + name]
            for name in _stock_order(module, [*module._parameters, *weights])
            if name in weights or prefix + name in state
        }
        before = dict(state)
        state.clear()  # not a new one: PyTorch keeps module versions with the tensors
        for key, tensor in before.items():
            if key.startswith(prefix) and own.keys().isdisjoint(state):
                state.update(own)  # the parameters of a module precede those of its children
            if key not in own and not key.startswith(inside):
                state[key] = tensor
    return state


def _check_active(model: nn.Module, layers: dict[str, nn.Module]) -> None:
    """Raise unless there is something to merge."""
    if any(static_similarities(module) for module in layers.values()):
        return
    if any(isinstance(m, DynamicLayer) and m.active is not None for m in model.modules()):
        raise MergeError(
            "merge: expected a static similarity, got only dynamic ones. They depend on the input, "
            "so no single kernel equals them. Export the network as it is."
        )
    if names := list_similarities(model):
        raise MergeError(
            f"merge: expected an active similarity, got none of {', '.join(map(repr, names))} "
            f"active. Choose one with neural_similarity.set_similarity(model, name)."
        )
    raise MergeError(
        "merge: expected a model with an attached similarity, got one without. Call "
        "neural_similarity.attach(model, config) first."
    )


def _effective(module: nn.Module, weight: str) -> Tensor:
    """The weight as the layer uses it, computed now: ``parametrize.cached`` may hold an old one."""
    parametrization = module.get_submodule(f"parametrizations.{weight}")
    with torch.no_grad(), evaluation(parametrization):  # in training, spectral norm moves buffers
        value: Tensor = parametrization()
        original = getattr(parametrization, "original", value)
        if original.shape == value.shape and original.stride() != value.stride():
            value = torch.empty_like(original).copy_(value)  # as a stock weight lies in memory
    return value.detach()


def _check_merged(name: str, module: nn.Module) -> None:
    """Raise unless a plain layer with the merged weights gives the layer's output."""
    if any(parameter.is_meta for parameter in module.parameters()):
        raise MergeError(
            f"merge: expected layer {name!r} to have values, got parameters on the meta device. "
            f"Load a checkpoint that has them with load_state_dict(state, assign=True) first. The "
            f"model is unchanged."
        )
    if any(is_sharded(parameter) for parameter in module.parameters()):
        raise MergeError(
            f"merge: expected layer {name!r} with whole weights, got weights that fully_shard has "
            f"divided among processes. Load a full state_dict, or a file of save_similarity, into "
            f"an unsharded model and merge that. The model is unchanged."
        )
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
            f"Its similarity is not a fixed function of its parameters, or its parameters are not "
            f"finite. The model is unchanged."
        )


def _plain_twin(module: nn.Module) -> nn.Module:
    """The layer as merging will leave it, as a separate module; only the weights are copied."""
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
    """The class that merging leaves: the stock one, unless the layer computes something else."""
    cls: type[nn.Module] = type(module).__bases__[0]  # below the one that parametrize made
    stock: type[nn.Module] = vars(cls).get("stock_class", cls)  # subclasses of ours stay
    return stock if stock.forward is cls.forward else cls


def remove_all(module: nn.Module, keep: bool = False) -> None:
    """Leave a layer its weights as they are used now, and nothing of this library.

    ``keep`` leaves what was remembered about it, for :func:`neural_similarity.unmerge`.
    """
    own_class(module)
    merged_type, similarities = _merged_type(module), static_by_name(module)
    order = _stock_order(module, [*module._parameters, *next(iter(similarities.values()))])
    if not keep:
        forget_layer(module)
    for by_weight in similarities.values():
        for similarity in by_weight.values():
            if similarity.handle is not None:
                similarity.handle.remove()
    for weight in next(iter(similarities.values())):
        value = _effective(module, weight)
        parametrize.remove_parametrizations(module, weight, leave_parametrized=False)
        with torch.no_grad():
            module.get_parameter(weight).set_(value)  # type: ignore[call-overload]
    # Optimisers save their state by the order of parameters.
    for name in order:
        module._parameters[name] = module._parameters.pop(name)
    if not parametrize.is_parametrized(module):  # by others, on other tensors
        module.__class__ = merged_type
    if isinstance(module, nn.RNNBase):
        module._init_flat_weights()


def _stock_order(module: nn.Module, names: list[str]) -> list[str]:
    """The names of the layer's parameters, in the order that they had before the attachment."""
    orders = [
        s.stock_order for by_weight in static_by_name(module).values() for s in by_weight.values()
    ]
    order = next(filter(None, orders), ())
    return sorted(names, key=lambda name: order.index(name) if name in order else len(order))
