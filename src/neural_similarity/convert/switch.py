"""Several similarities on one model: which there are, and which one is active."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from torch import nn

from .. import _check
from ..errors import AttachError
from ..nn.inventory import activate, active_name, similarities_by_name
from .unmerge import kept_names

__all__ = [
    "active_similarity",
    "check_attached",
    "check_switched_on",
    "is_switched_off",
    "list_similarities",
    "refuse_merged",
    "set_similarity",
    "without_similarity",
]

_Model = TypeVar("_Model", bound=nn.Module)


def list_similarities(model: nn.Module) -> list[str]:
    """The names of all similarities attached to the model, active or not, sorted."""
    return sorted({name for module in model.modules() for name in similarities_by_name(module)})


def check_attached(where: str, model: nn.Module, name: str) -> None:
    """Raise unless the model has a similarity of this name."""
    names = list_similarities(model)
    if name not in names:
        refuse_merged(where, model, name)
    if not names:
        raise AttachError(
            f"{where}: expected a model with an attached similarity, got one without. Call attach "
            f"first."
        )
    _check.known_name(where, "name", name, names)


def is_switched_off(model: nn.Module) -> bool:
    """Whether the model has similarities and uses none of them."""
    names = list_similarities(model)
    return bool(names) and all(active_name(module) is None for module in model.modules())


def check_switched_on(where: str, model: nn.Module) -> None:
    """Raise if the model has similarities and uses none of them."""
    if is_switched_off(model):
        names = ", ".join(map(repr, list_similarities(model)))
        raise AttachError(
            f"{where}: expected an active similarity, or a model without any, got one with {names} "
            f"switched off. Choose one with neural_similarity.set_similarity(model, name)."
        )


def active_similarity(model: nn.Module) -> str | None:
    """The name of the similarity that the model uses; None if it uses none."""
    names = {active_name(module) for module in model.modules()} - {None}
    if len(names) > 1:
        raise AttachError(
            f"active_similarity: expected one active similarity, got {', '.join(map(repr, names))} "
            f"in different parts of the model. Call set_similarity on the whole model."
        )
    return next(iter(names), None)


def set_similarity(model: _Model, name: str | None) -> _Model:
    """Use the similarity of this name in the whole model, in place, and return the model.

    Layers without a similarity of this name become plain layers. None turns all similarities off:
    outputs are exactly those of the network before :func:`neural_similarity.attach`. Parameters
    and their ``requires_grad`` do not change. The ``state_dict`` does not contain the choice.

    In distributed training, call :func:`neural_similarity.freeze_backbone` after it: parameters of
    similarities that are not active get no gradient.

    Raises:
        UnknownNameError: the model has no similarity of this name.
        AttachError: the model has no similarity at all, or :func:`neural_similarity.merge` has
            written it into the weights.

    Example:
        >>> import neural_similarity as ns
        >>> model = nn.Sequential(nn.Conv2d(3, 8, 3))
        >>> _ = ns.attach(model, ns.StaticSimilarity("diagonal"), name="birds")
        >>> _ = ns.attach(model, ns.StaticSimilarity("unconstrained"), name="cars")
        >>> ns.list_similarities(model), ns.active_similarity(model)
        (['birds', 'cars'], 'cars')
        >>> ns.active_similarity(set_similarity(model, "birds"))
        'birds'
    """
    if name is not None:
        check_attached("set_similarity", model, name)
    elif not list_similarities(model):
        refuse_merged("set_similarity", model)
    for module in model.modules():
        activate(module, name)
    return model


@contextmanager
def without_similarity(model: _Model) -> Iterator[_Model]:
    """Within the block, the model is the plain network; it is restored even after an error.

    Example:
        >>> import torch
        >>> import neural_similarity as ns
        >>> model = nn.Sequential(nn.Conv2d(3, 8, 3))
        >>> image = torch.randn(1, 3, 8, 8)
        >>> before = model(image)
        >>> _ = ns.attach(model, ns.StaticSimilarity())
        >>> _ = torch.nn.init.normal_(next(ns.similarity_parameters(model)))
        >>> with without_similarity(model):
        ...     plain = model(image)
        >>> torch.equal(plain, before), torch.equal(model(image), before)
        (True, False)
    """
    names = {module: active_name(module) for module in model.modules()}
    set_similarity(model, None)
    try:
        yield model
    finally:
        for module in model.modules():
            activate(module, names.get(module))


def refuse_merged(where: str, model: nn.Module, name: str | None = None) -> None:
    """Raise if the model was merged with ``keep``: this similarity, or any if there is no name."""
    names = kept_names(model)
    if name in names or (name is None and names):
        listed = repr(name) if name is not None else ", ".join(map(repr, sorted(names)))
        raise AttachError(
            f"{where}: expected an attached similarity, got {listed} merged into the weights. Call "
            f"neural_similarity.unmerge(model) first."
        )
