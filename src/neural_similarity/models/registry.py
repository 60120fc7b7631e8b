"""Which networks there are, by name."""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from .. import _check

__all__ = ["create_model", "list_models", "register_model"]

_REGISTRY: dict[str, Callable[..., nn.Module]] = {}


def register_model(name: str, make: Callable[..., nn.Module]) -> None:
    """Make a network known: ``make(num_classes=..., **options)`` builds it."""
    _REGISTRY[name] = make


def create_model(name: str, num_classes: int = 10, **options: Any) -> nn.Module:
    """A new network; ``options`` are those of its class.

    Example:
        >>> model = create_model("spherenet9_attention", num_classes=5)
        >>> model.get_classifier().out_features
        5
    """
    _check.known_name("create_model", "name", name, _REGISTRY)
    return _REGISTRY[name](num_classes=num_classes, **options)


def list_models(pattern: str = "*") -> list[str]:
    """The names of all networks that match, sorted; ``*`` stands for anything.

    >>> list_models("sphere*")
    ['spherenet9', 'spherenet9_attention']
    """
    return sorted(name for name in _REGISTRY if fnmatchcase(name, pattern))
