"""Networks that a function of the user's makes, named as ``module:function``."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from torch import nn

from ...errors import RunError, UnknownNameError

__all__ = ["call_function"]


def call_function(spec: str) -> nn.Module:
    """What the function of ``module:function`` returns; whatever their code raises is told."""
    found = _find(spec)
    if not callable(found):
        raise UnknownNameError(f"backbone: expected {spec!r} to be a function, got {found!r}.")
    try:
        made = found()
    except Exception as error:
        raise RunError(
            f"{spec}: expected a function that works without arguments and returns an nn.Module, "
            f"got {_told(error)}. Mend it, or name one that calls it with its arguments."
        ) from error
    if not isinstance(made, nn.Module):
        raise RunError(
            f"{spec}: expected a function that returns an nn.Module, got {type(made).__name__}."
        )
    return made


def _find(spec: str) -> Any:
    module, _, name = spec.partition(":")
    try:
        found: Any = import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise UnknownNameError(
            f"backbone: expected {spec!r} to name a function that can be imported, got {error}."
        ) from error
    except Exception as error:
        raise RunError(
            f"backbone: expected {module!r} to be a module that can be imported, got "
            f"{_told(error)}. Mend it first."
        ) from error
    return found


def _told(error: Exception) -> str:
    """What went wrong, in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}".removesuffix(".")
