"""The few-shot methods by name."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, TypeVar

from ... import _check
from .base import Method

__all__ = ["create_method", "list_methods", "register_method"]

_REGISTRY: dict[str, type[Method]] = {}
_Class = TypeVar("_Class", bound=type[Method])


def register_method(cls: _Class) -> _Class:
    """Register a method under its name (a class decorator, above ``@dataclass``).

    A class may be redefined, as in a notebook; another class of the same name is refused.
    """
    _check.new_name("register_method", cls.name, cls, _REGISTRY)
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
