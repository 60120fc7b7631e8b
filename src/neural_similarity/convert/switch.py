"""Several similarities on one model: which there are, and which one is active."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from torch import nn

from .. import _check
from ..errors import AttachError
from ..nn.inventory import activate, active_name, similarities_by_name

__all__ = [
    "active_similarity",
    "check_attached",
    "list_similarities",
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
    if not names:
        raise AttachError(
            f"{where}: expected a model with an attached similarity, got one without. Call attach "
            f"first."
        )
    _check.known_name(where, "name", name, names)


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

    Layers without a similarity of this name are plain layers then. None turns all of them off:
    outputs are exactly those of the network before :func:`neural_similarity.attach`. Parameters
    and their ``requires_grad`` do not change. The ``state_dict`` does not contain the choice.

    In distributed training, call :func:`neural_similarity.freeze_backbone` after it: parameters of
    similarities that are not active get no gradient.

    Raises:
        UnknownNameError: the model has no similarity of this name.
        AttachError: the model has no similarity at all.

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
    for module in model.modules():
        activate(module, name)
    return model


@contextmanager
def without_similarity(model: _Model) -> Iterator[_Model]:
    """Within, the model is the plain network; afterwards it is as it was, also after an error.

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
