"""Take similarities off again: the network as it was before, with the weights it has now."""

from __future__ import annotations

from typing import TypeVar

from torch import nn
from torch.nn.utils import parametrize

from ..errors import AttachError
from ..nn.dynamic import DynamicLayer
from ..nn.dynamic.layer_class import can_be_stock, make_stock
from ..nn.inventory import activate, active_name, similarities_by_name
from ..nn.parametrization import SimilarityParametrization, put_on, static_by_name
from .merge import remove_all
from .switch import check_attached, list_similarities
from .wrappers import is_sharded, reshard

__all__ = ["detach"]

_Model = TypeVar("_Model", bound=nn.Module)


def detach(model: _Model, name: str | None = None) -> _Model:
    """Remove a similarity from the model, in place, and return the model.

    A layer without any similarity left is a stock layer again, with its class, keys and order of
    parameters. The weights are the same ``Parameter`` objects and do not change: what M did is
    gone, unlike after :func:`neural_similarity.merge`. Save it first if it should be used again.

    Layers of ``nn.family``, and subclasses of dynamic layers, keep the similarity that they were
    built with.

    Args:
        model: with attached similarities.
        name: the one to remove; None removes all. If it was active, none is active afterwards.

    Raises:
        AttachError: the model has no similarity that can be removed, another parametrization lies
            on top of one, or the weights are sharded. The model is unchanged.
        UnknownNameError: the model has no similarity of this name.

    Example:
        >>> import torch
        >>> import neural_similarity as ns
        >>> model = nn.Sequential(nn.Conv2d(3, 8, 3))
        >>> image = torch.randn(1, 3, 8, 8)
        >>> before = model(image)
        >>> model = detach(ns.attach(model, ns.DynamicSimilarity()))
        >>> type(model[0]), torch.equal(model(image), before)
        (<class 'torch.nn.modules.conv.Conv2d'>, True)
    """
    reshard(model)
    if name is not None or not list_similarities(model):
        check_attached("detach", model, "" if name is None else name)
    modules = {
        path: module
        for path, module in model.named_modules()
        if (own := similarities_by_name(module)) and (name is None or name in own)
    }
    for path, module in modules.items():
        _check(path or "model", module)
    layers = [module for module in modules.values() if _can_lose(module)]
    if not layers:
        raise AttachError(
            "detach: expected similarities that attach added, got only layers that were built with "
            "theirs. Build the network without them."
        )
    for module in layers:
        names = list(similarities_by_name(module)) if name is None else [name]
        if isinstance(module, DynamicLayer):
            for one in names:
                module.uninstall(one)
            if not module.installed:
                make_stock(module)
        else:
            _take_off(module, names)
    return model


def _can_lose(module: nn.Module) -> bool:
    """Whether a layer with a similarity would be a layer without it."""
    return not isinstance(module, DynamicLayer) or can_be_stock(module)


def _check(path: str, module: nn.Module) -> None:
    if any(is_sharded(parameter) for parameter in module.parameters()):
        raise AttachError(
            f"detach: expected layer {path!r} with whole weights, got weights that fully_shard has "
            f"divided among processes. Detach before sharding. The model is unchanged."
        )
    if isinstance(module, DynamicLayer) and parametrize.is_parametrized(module):
        raise AttachError(
            f"detach: expected dynamic layer {path!r} without parametrizations, got one of "
            f"{', '.join(module.get_submodule('parametrizations')._modules)}. Its class lies on "
            f"top of that of the layer. Remove it first. The model is unchanged."
        )
    for weights in static_by_name(module).values():
        for weight in weights:
            for other in module.get_submodule(f"parametrizations.{weight}").children():
                if not isinstance(other, SimilarityParametrization):
                    raise AttachError(
                        f"detach: expected {weight} of layer {path!r} to have only similarities, "
                        f"got a {type(other).__name__} as well. Remove it first. The model is "
                        f"unchanged."
                    )


def _take_off(module: nn.Module, names: list[str]) -> None:
    """Remove static similarities of these names from a layer."""
    others = {name: own for name, own in static_by_name(module).items() if name not in names}
    active, cls = active_name(module), type(module).__bases__[0]  # below that of parametrize
    activate(module, None)
    remove_all(module)
    if others:
        if not parametrize.is_parametrized(module):  # by others, on other tensors
            module.__class__ = cls
        for own in others.values():
            put_on(module, own)
        activate(module, active if active in others else None)
