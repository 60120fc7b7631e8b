"""What comes out of a network: find the layer that computes the scores, check the features."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from typing import Any

import torch
from torch import Tensor, nn

from ...convert.probe import evaluation
from ...errors import NeuralSimilarityError, RunError, ShapeError

__all__ = ["check_features", "check_finite", "find_classifier"]


def find_classifier(name: str, module: nn.Module, image_shape: tuple[int, int, int]) -> str | None:
    """The linear layer whose output is the network's.

    None if the network ends in another layer, so it returns features already, or if it has a
    ``get_classifier``.
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


def check_features(name: str, module: nn.Module, image_shape: tuple[int, int, int]) -> None:
    """Raise unless the module returns features for images of this shape."""
    features = _forward(name, module, image_shape)
    if not isinstance(features, Tensor) or features.dim() < 2 or not features.is_floating_point():
        raise ShapeError(f"{name}: expected one tensor of features, got {type(features).__name__}.")


def check_finite(features: Tensor) -> Tensor:
    """The features ``(N, D)``; raises unless all are finite."""
    bad = int((~features.isfinite()).any(1).sum())
    if bad:
        raise RunError(
            f"backbone: expected finite features, got NaN or infinity for {bad} of {len(features)} "
            f"image(s). Its weights may come from training that diverged, or the images may be "
            f"scaled differently from its training images. Check its weights, and mean and std "
            f"(--mean, --std), or use another backbone (--backbone)."
        )
    return features


def _forward(name: str, module: nn.Module, image_shape: tuple[int, int, int]) -> Any:
    try:
        images = torch.rand(2, *image_shape, generator=torch.Generator().manual_seed(0))
        with evaluation(module), torch.no_grad(), redirect_stdout(sys.stderr):
            return module(images)  # keep their output apart from ours
    except NeuralSimilarityError:
        raise
    except Exception as error:  # their code may fail in any way
        raise ShapeError(
            f"{name}: expected a network that reads images of shape {image_shape}, got an error: "
            f"{' '.join(str(error).split())} Set image_size (--image-size), and mean and std "
            f"(--mean, --std) with as many channels as the network reads."
        ) from error
