"""Feature extractors from a function of the user, named as ``module:function``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from typing import Any

from torch import nn

from ...errors import RunError, ShapeError, UnknownNameError
from ...fewshot.network import remove_classifier
from ..preprocessing import Preprocessing
from .extractor import FeatureExtractor
from .network_output import find_classifier

__all__ = ["call_function", "extractor_from_function"]


def extractor_from_function(
    spec: str, preprocessing: Mapping[str, Any], classifier: str | None
) -> FeatureExtractor:
    """The network that a function returns, without classifier; the user says what it reads."""
    missing = [key for key in ("image_size", "mean", "std") if key not in preprocessing]
    if missing:
        raise ShapeError(
            f"{spec}: expected the preprocessing of this network, got no {', '.join(missing)}. "
            f"Only you know how its images were prepared. Set image_size, mean and std "
            f"(--image-size, --mean, --std)."
        )
    module = call_function(spec)
    extractor = FeatureExtractor(module, Preprocessing(**preprocessing), spec)
    name = classifier or find_classifier(spec, module, extractor.image_shape)
    source = {"kind": "factory", "name": spec, "classifier": name}
    return replace(extractor, module=remove_classifier(module, name), source=source)


def call_function(spec: str) -> nn.Module:
    """The network that the function of ``module:function`` returns; its errors are reported."""
    function = _import_function(spec)
    if not callable(function):
        raise UnknownNameError(f"backbone: expected {spec!r} to be a function, got {function!r}.")
    try:
        network = function()
    except Exception as error:
        raise RunError(
            f"{spec}: expected a function that works without arguments and returns an nn.Module, "
            f"got {_one_line(error)}. Correct it, or name a function that calls it with its "
            f"arguments."
        ) from error
    if not isinstance(network, nn.Module):
        raise RunError(
            f"{spec}: expected a function that returns an nn.Module, got {type(network).__name__}."
        )
    return network


def _import_function(spec: str) -> Any:
    module, _, name = spec.partition(":")
    try:
        value: Any = import_module(module)
        for part in name.split("."):
            value = getattr(value, part)
    except (ImportError, AttributeError) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        is_its_own = missing is None or missing == module or module.startswith(f"{missing}.")
        hint = "" if is_its_own else f" Install {missing}, or add its folder to PYTHONPATH."
        raise UnknownNameError(
            f"backbone: expected {spec!r} to name a function that can be imported, got "
            f"{error}.{hint}"
        ) from error
    except Exception as error:
        raise RunError(
            f"backbone: expected {module!r} to be a module that can be imported, got "
            f"{_one_line(error)}. Correct it first."
        ) from error
    return value


def _one_line(error: Exception) -> str:
    """The error as one line of text."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}".removesuffix(".")
