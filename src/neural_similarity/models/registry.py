"""Which networks there are, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fnmatch import fnmatchcase
from inspect import Parameter, signature
from typing import Any

from torch import nn

from .. import _check
from ..convert.attach import attach
from ..nn.dynamic_similarity import DynamicSimilarity
from ..nn.static import StaticSimilarity

__all__ = ["create_model", "list_models", "register_model"]

_REGISTRY: dict[str, Callable[..., nn.Module]] = {}
_SIMILARITIES: dict[str, Callable[[], StaticSimilarity | DynamicSimilarity | None]] = {
    "none": lambda: None,
    "static": StaticSimilarity,
    "dynamic": DynamicSimilarity,
}


def register_model(name: str, make: Callable[..., nn.Module]) -> None:
    """Make a network known.

    Args:
        name: what :func:`create_model` will call it.
        make: ``make(num_classes=..., in_channels=..., image_size=..., **options)`` builds it. If
            the network has an attribute ``similarity_layers``, a regular expression, a similarity
            goes to the layers it names; otherwise to all convolutions.
    """
    _REGISTRY[name] = make


def create_model(
    name: str,
    num_classes: int = 10,
    similarity: str | StaticSimilarity | DynamicSimilarity | None = None,
    in_channels: int = 3,
    image_size: int | None = None,
    **options: Any,
) -> nn.Module:
    """A new network, with or without a similarity.

    Args:
        name: one of :func:`list_models`.
        num_classes: outputs of the classifier.
        similarity: None or ``"none"``, ``"static"``, ``"dynamic"`` (both diagonal), or a
            configuration. Unless it names layers itself (``target_modules``), it goes where the
            paper has it: on the 3×3 convolutions, but not on a root layer. Weights drawn from one
            seed are the same with and without.
        in_channels: channels of the images.
        image_size: their side in pixels; None is the size that the network was designed for.
        options: those of its class, such as ``width`` or ``conv_layer``.

    Example:
        >>> import torch
        >>> model = create_model("cnn9", num_classes=5, similarity="static", image_size=8)
        >>> model(torch.randn(2, 3, 8, 8)).shape
        torch.Size([2, 5])
        >>> type(model.get_classifier()).__name__
        'Linear'
    """
    _check.known_name("create_model", "name", name, _REGISTRY)
    make, config = _REGISTRY[name], _similarity(similarity)
    _check_options(name, make, options)
    if image_size is not None:
        options["image_size"] = image_size
    given = {"num_classes": num_classes, "in_channels": in_channels, **options}
    model = make(**{name: _check.plain_number(value) for name, value in given.items()})
    if config is None:
        return model
    layers = getattr(model, "similarity_layers", None)
    if config.target_modules == "all-conv" and layers is not None:
        config = replace(config, target_modules=layers)
    return attach(model, config)


def list_models(pattern: str = "*") -> list[str]:
    """The names of all networks that match, sorted; ``*`` stands for anything.

    >>> list_models("sphere*")
    ['spherenet9', 'spherenet9_attention']
    """
    return sorted(name for name in _REGISTRY if fnmatchcase(name, pattern))


def _similarity(given: object) -> StaticSimilarity | DynamicSimilarity | None:
    if given is None or isinstance(given, StaticSimilarity | DynamicSimilarity):
        return given
    what = "similarity, where it is no StaticSimilarity or DynamicSimilarity,"
    _check.known_name("create_model", what, given, _SIMILARITIES)
    return _SIMILARITIES[str(given)]()


def _check_options(name: str, make: Callable[..., nn.Module], options: dict[str, Any]) -> None:
    parameters = signature(make).parameters
    if any(p.kind is Parameter.VAR_KEYWORD for p in parameters.values()):
        return
    known = set(parameters) - {"num_classes", "in_channels", "image_size"}
    for option in options:
        _check.known_name(f"create_model({name!r})", "an option", option, known)
