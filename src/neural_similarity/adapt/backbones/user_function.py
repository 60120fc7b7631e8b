"""Feature extractors from a user's function, given as ``module:function``."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from torch import nn

from ...errors import RunError, ShapeError, UnknownNameError
from ...fewshot.network import remove_classifier
from ..preprocessing import Preprocessing
from .extractor import FeatureExtractor
from .network_output import find_classifier

__all__ = ["extractor_from_function", "network_of_function"]


def extractor_from_function(
    spec: str, preprocessing: Mapping[str, Any], classifier: str | None
) -> FeatureExtractor:
    """The network that a function returns, without classifier.

    The function may return a :class:`FeatureExtractor`. Otherwise the user gives the preprocessing.
    """
    result = _call(spec)
    if isinstance(result, FeatureExtractor):
        return _named(result, spec, classifier)
    missing = [key for key in ("image_size", "mean", "std") if key not in preprocessing]
    if missing:
        raise ShapeError(
            f"{spec}: expected the preprocessing of this network, got no {', '.join(missing)}. "
            f"Only you know how its images were prepared. Set image_size, mean and std "
            f"(--image-size, --mean, --std; in Python, pass the result of load_backbone({spec!r}, "
            f"image_size=..., mean=..., std=...) as backbone), or let the function return a "
            f"FeatureExtractor."
        )
    extractor = FeatureExtractor(result, Preprocessing(**preprocessing), spec)
    name = classifier or find_classifier(spec, result, extractor.image_shape)
    source = {"kind": "factory", "name": spec, "classifier": name}
    return replace(extractor, module=remove_classifier(result, name), source=source)


def network_of_function(spec: str, classifier: str | None) -> nn.Module:
    """The module of :func:`extractor_from_function` anew; ``classifier`` is in its source."""
    result = _call(spec)
    if isinstance(result, FeatureExtractor):
        return _named(result, spec, classifier).module
    return remove_classifier(result, classifier)


def _named(extractor: FeatureExtractor, spec: str, classifier: str | None) -> FeatureExtractor:
    """The user's extractor; if it has its own source, the function is not needed again."""
    if classifier is None and extractor.source is not None:
        return extractor
    module = extractor.module
    if classifier is not None:
        module = remove_classifier(module, classifier)
    source = {"kind": "factory", "name": spec, "classifier": classifier}
    return replace(extractor, module=module, name=spec, source=source)


def _call(spec: str) -> nn.Module | FeatureExtractor:
    """What the function of ``module:function`` returns; its errors are reported."""
    # Keep what their code prints out of a command's output.
    with redirect_stdout(sys.stderr):
        function = _import_function(spec)
    if not callable(function):
        raise UnknownNameError(f"backbone: expected {spec!r} to be a function, got {function!r}.")
    try:
        with redirect_stdout(sys.stderr):
            result = function()
    except Exception as error:
        raise RunError(
            f"{spec}: expected a function that works without arguments and returns an nn.Module, "
            f"got {_one_line(error)}. Correct it, or name a function that calls it with its "
            f"arguments."
        ) from error
    if not isinstance(result, nn.Module | FeatureExtractor):
        raise RunError(
            f"{spec}: expected a function that returns an nn.Module or a FeatureExtractor, got "
            f"{type(result).__name__}."
        )
    return result


def _import_function(spec: str) -> Any:
    module, _, name = spec.partition(":")
    try:
        value: Any = import_module(module)
        for part in name.split("."):
            value = getattr(value, part)
    except (ImportError, AttributeError) as error:
        raise UnknownNameError(
            f"backbone: expected {spec!r} to name a function that can be imported, got {error}."
            f"{_import_hint(module, error)}"
        ) from error
    except Exception as error:
        raise RunError(
            f"backbone: expected {module!r} to be a module that can be imported, got "
            f"{_one_line(error)}. Correct it first."
        ) from error
    return value


def _import_hint(module: str, error: Exception) -> str:
    """What to do if a module is not found."""
    if not isinstance(error, ModuleNotFoundError) or error.name is None:
        return ""
    if not f"{module}.".startswith(f"{error.name}."):
        return f" Install {error.name}, or add its folder to PYTHONPATH."
    return (
        f" It is neither in {Path.cwd()} nor on Python's path. Run this in the folder that "
        f"contains {error.name.partition('.')[0]}, or add that folder to PYTHONPATH."
    )


def _one_line(error: Exception) -> str:
    """The error as one line of text."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}".removesuffix(".")
