"""Predictors by their kind: for files, and for the command line."""

from __future__ import annotations

from typing import Any, TypeVar

from ... import _check
from ..._json import build
from ...errors import FileFormatError
from .base import PredictorConfig

__all__ = ["list_predictors", "predictor_class", "predictor_from_config", "register_predictor"]

_REGISTRY: dict[str, type[PredictorConfig]] = {}
_Class = TypeVar("_Class", bound=type[PredictorConfig])


def register_predictor(cls: _Class) -> _Class:
    """Register a predictor under its kind (a class decorator, above ``@dataclass``).

    Files and the command line then know it.

    Raises:
        DuplicateNameError: the kind belongs to another predictor.
    """
    _check.new_name("register_predictor", cls.kind, cls, _REGISTRY)
    _REGISTRY[cls.kind] = cls
    return cls


def list_predictors() -> list[str]:
    """The kinds of all predictors, sorted.

    >>> list_predictors()
    ['conv', 'image', 'pair', 'pixel', 'sphere']
    """
    return sorted(_REGISTRY)


def predictor_class(kind: str, where: str = "predictor") -> type[PredictorConfig]:
    """The predictor of a kind."""
    _check.known_name(where, "kind", kind, _REGISTRY)
    return _REGISTRY[kind]


def predictor_from_config(config: dict[str, Any]) -> PredictorConfig:
    """The configuration that ``to_config`` described."""
    options = {name: value for name, value in config.items() if name != "kind"}
    return build(predictor_class(config["kind"]), options, "predictor", FileFormatError)
