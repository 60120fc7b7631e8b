"""Finding and taking off the layer that gives scores, so that a network gives features."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ... import _check
from ...errors import NeuralSimilarityError, RunError, ShapeError

__all__ = ["check_features", "check_finite", "find_classifier", "remove_classifier"]


def find_classifier(name: str, module: nn.Module, image_shape: tuple[int, int, int]) -> str | None:
    """The linear layer whose output is the network's.

    None where the network ends otherwise, and so gives features already, and where
    ``get_classifier`` tells.
    """
    if callable(getattr(module, "get_classifier", None)):
        return None
    outputs: dict[str, Tensor] = {}

    def remember(name: str) -> Callable[[nn.Module, Any, Tensor], None]:
        return lambda _module, _input, output: outputs.__setitem__(name, output)

    linear = [(n, m) for n, m in module.named_modules() if isinstance(m, nn.Linear) and n]
    handles = [layer.register_forward_hook(remember(name)) for name, layer in linear]
    try:
        scores = _forward(name, module, image_shape)
    finally:
        for handle in handles:
            handle.remove()
    return next((layer for layer, output in outputs.items() if output is scores), None)


def remove_classifier(module: nn.Module, classifier: str | None) -> nn.Module:
    """The module without its classifier, which is named or left to ``get_classifier``."""
    name = classifier
    if name is None:
        get_classifier = getattr(module, "get_classifier", None)
        last = get_classifier() if callable(get_classifier) else None
        name = next((n for n, m in module.named_modules() if m is last and n), None)
    if name is None:
        return module
    names = [known for known, _ in module.named_modules() if known]
    _check.known_name("backbone", "the classifier", name, names)
    parent, _, child = name.rpartition(".")
    setattr(module.get_submodule(parent), child, nn.Identity())
    return module


def check_features(name: str, module: nn.Module, image_shape: tuple[int, int, int]) -> None:
    """Raise unless images of this shape come to features."""
    features = _forward(name, module, image_shape)
    if not isinstance(features, Tensor) or features.dim() < 2 or not features.is_floating_point():
        raise ShapeError(f"{name}: expected one tensor of features, got {type(features).__name__}.")


def check_finite(features: Tensor) -> Tensor:
    """The features ``(N, D)``, if all of them are numbers: nothing can be told from others."""
    bad = int((~features.isfinite()).any(1).sum())
    if bad:
        raise RunError(
            f"backbone: expected finite features, got NaN or infinity for {bad} of {len(features)} "
            f"image(s). Its weights may come from training that diverged, or the images may be of "
            f"another scale than it learned from. Check its weights, and mean and std (--mean, "
            f"--std), or give another backbone (--backbone)."
        )
    return features


def _forward(name: str, module: nn.Module, image_shape: tuple[int, int, int]) -> Any:
    images = torch.rand(2, *image_shape, generator=torch.Generator().manual_seed(0))
    try:
        with torch.no_grad():
            return module.eval()(images)
    except NeuralSimilarityError:
        raise
    except Exception as error:  # their code may fail in any way
        raise ShapeError(
            f"{name}: expected a network that reads images of shape {image_shape}, got an error: "
            f"{' '.join(str(error).split())} Give image_size (--image-size), and mean and std "
            f"(--mean, --std) of as many channels as it was made for."
        ) from error
