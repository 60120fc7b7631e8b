"""The few-shot methods by name."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, TypeVar

from ... import _check
from ...errors import RunError
from .base import Method

__all__ = ["create_method", "list_methods", "register_method"]

_REGISTRY: dict[str, type[Method]] = {}
_Class = TypeVar("_Class", bound=type[Method])


def register_method(cls: _Class) -> _Class:
    """Register a method under its name (a class decorator, above ``@dataclass``).

    A class may be defined again, as in a notebook; another class of the same name is refused.
    """
    before = _REGISTRY.get(cls.name, cls)
    if (before.__module__, before.__qualname__) != (cls.__module__, cls.__qualname__):
        raise RunError(
            f"register_method: expected a new name, got {cls.name!r} again. It is the name of "
            f"{before.__module__}.{before.__qualname__}. Choose another name."
        )
    _REGISTRY[cls.name] = cls
    return cls


def list_methods() -> list[str]:
    """The names of all methods, sorted.

    >>> "proto" in list_methods()
    True
    """
    return sorted(_REGISTRY)


def create_method(name: str, **options: Any) -> Method:
    """A method by name; options replace its default hyperparameters.

    >>> create_method("proto", batch_norm="batch")
    Proto(batch_norm='batch')
    """
    _check.known_name("create_method", "name", name, _REGISTRY)
    cls = _REGISTRY[name]
    for option in options:
        _check.known_name(f"create_method({name!r})", "an option", option, option_names(cls))
    return cls(**options)


def option_names(cls: type[Method]) -> list[str]:
    """The names of a method's options."""
    return [field.name for field in fields(cls)]
