"""Running statistics of BatchNorm: freezing parameters does not stop them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from ..errors import ChangedStatisticsWarning
from ..nn.inventory import predictor_modules

__all__ = ["freeze_statistics", "remember_statistics", "warn_of_changed_statistics"]

_MEMORY = "_statistics_when_frozen"  # of a layer; copies of the model have it too, files do not


def freeze_statistics(model: nn.Module) -> None:
    """Let BatchNorm of the backbone use its running statistics and keep them.

    BatchNorm inside predictors goes on learning its own. ``model.train()`` undoes this: call it
    after that.

    Example:
        >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))
        >>> _ = model.train()
        >>> freeze_statistics(model)
        >>> model.training, model[1].training
        (True, False)
    """
    for layer in _layers(model):
        layer.eval()


def remember_statistics(model: nn.Module) -> None:
    """Remember all running statistics outside predictors."""
    for layer in _layers(model):
        layer.__dict__[_MEMORY] = [value.detach().clone() for value in _statistics(layer)]


def warn_of_changed_statistics(model: nn.Module) -> None:
    """Warn if those of frozen layers have changed: a file of the similarity alone lacks that."""
    if all(parameter.requires_grad for parameter in model.parameters()):
        return  # trained as a whole
    changed = [layer for layer in _layers(model) if _is_frozen(layer) and _has_changed(layer)]
    if changed:
        warnings.warn(
            f"save_similarity: expected frozen layers with the statistics they had, got "
            f"{len(changed)} whose running mean and variance changed since freeze_backbone. They "
            f"are not in the file, so it does not fit the original network. Call "
            f"freeze_statistics(model) after model.train(), or save the state_dict as well.",
            ChangedStatisticsWarning,
            stacklevel=3,
        )


def _layers(model: nn.Module) -> Iterator[_NormBase]:
    inside = predictor_modules(model)
    for module in model.modules():
        if isinstance(module, _NormBase) and module not in inside:
            yield module


def _statistics(layer: _NormBase) -> list[Tensor]:
    values = (layer.running_mean, layer.running_var)
    return [value for value in values if value is not None and not value.is_meta]


def _is_frozen(layer: _NormBase) -> bool:
    return not any(parameter.requires_grad for parameter in layer.parameters())


def _has_changed(layer: _NormBase) -> bool:
    memory = layer.__dict__.get(_MEMORY, ())
    pairs = zip(_statistics(layer), memory, strict=False)
    return not all(torch.equal(now, before.to(now)) for now, before in pairs)
