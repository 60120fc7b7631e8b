"""Running statistics of BatchNorm: freezing parameters does not stop them."""

from __future__ import annotations

import warnings
from weakref import WeakKeyDictionary

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from ..errors import ChangedStatisticsWarning
from ..nn.inventory import predictor_modules

__all__ = ["remember_statistics", "warn_of_changed_statistics"]

_BATCHES: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()
"""How many batches each frozen layer had seen when it was frozen."""


def remember_statistics(model: nn.Module) -> None:
    """Remember the state of all running statistics outside predictors."""
    for layer, count in _counts(model).items():
        _BATCHES[layer] = int(count)


def warn_of_changed_statistics(model: nn.Module) -> None:
    """Warn if frozen layers have seen batches: a file of the similarity alone lacks that change."""
    counts = _counts(model)
    changed = [
        layer
        for layer, count in counts.items()
        if int(count) != _BATCHES.get(layer, int(count))
        and not any(parameter.requires_grad for parameter in layer.parameters())
    ]
    if changed:
        warnings.warn(
            f"save_similarity: expected frozen layers with the statistics they had, got "
            f"{len(changed)} whose running mean and variance changed since freeze_backbone. They "
            f"are not in the file, so it does not fit the original network. Train in model.eval(), "
            f"or save the state_dict as well.",
            ChangedStatisticsWarning,
            stacklevel=3,
        )


def _counts(model: nn.Module) -> dict[nn.Module, Tensor]:
    inside = predictor_modules(model)
    return {
        module: module.num_batches_tracked
        for module in model.modules()
        if isinstance(module, _NormBase) and module not in inside
        if module.num_batches_tracked is not None and not module.num_batches_tracked.is_meta
    }
