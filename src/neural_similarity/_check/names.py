"""Errors about names: unknown ones, and ones that are taken."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from ..errors import DuplicateNameError, ShapeError, UnknownNameError

__all__ = ["known_name", "new_name", "only_choices"]


def known_name(where: str, what: str, got: object, choices: Iterable[str]) -> None:
    """Raise unless ``got`` is one of ``choices``."""
    choices = sorted(choices)
    if got in choices:
        return
    nearest = difflib.get_close_matches(str(got), choices, n=1, cutoff=0.6)
    hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
    raise UnknownNameError(
        f"{where}: expected {what} to be one of {', '.join(map(repr, choices))}, got {got!r}.{hint}"
    )


def new_name(where: str, name: str, definition: object, registry: Mapping[str, object]) -> None:
    """Raise if ``name`` belongs to another definition in ``registry``.

    A definition with the same module and qualified name is the same one: a notebook cell that is
    run again may replace what it registered before.
    """
    old = registry.get(name)
    if old is not None and _identity(old) != _identity(definition):
        raise DuplicateNameError(
            f"{where}: expected a name that is not in use, got {name!r} for "
            f"{_definition(definition)}. It belongs to {_definition(old)}. Choose another name."
        )


def only_choices(where: str, why: str, **options: tuple[object, object]) -> None:
    """Raise unless each option, ``(value, only choice)``, has the only value that is supported."""
    for what, (value, only) in options.items():
        if type(value) is not type(only) or value != only:
            raise ShapeError(
                f"{where}: expected {what} {only!r}, got {value!r}. {why} Leave {what} out."
            )


def _identity(definition: Any) -> object:
    if isinstance(definition, partial):  # the same class with other options is something else
        return _identity(definition.func), definition.args, definition.keywords
    return _definition(definition)


def _definition(definition: Any) -> str:
    while isinstance(definition, partial):
        definition = definition.func
    if not hasattr(definition, "__qualname__"):  # an object that can be called
        definition = type(definition)
    return f"{definition.__module__}.{definition.__qualname__}"
