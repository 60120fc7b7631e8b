"""BatchNorm as the settings describe it."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from ...nn.inventory import predictor_modules
from ..settings import Settings

__all__ = ["norm_parameters", "set_norms"]


def set_norms(model: nn.Module, config: Settings) -> None:
    """Give every BatchNorm the momentum, eps and initial statistics of the settings.

    The authors' moving averages have a decay of 0.999, which is a momentum of 0.001 in PyTorch, and
    start at zero: ``norm_start="zero"`` does that for variances. Means start at zero anyway.
    """
    predictors = predictor_modules(model)
    for module in model.modules():
        if not isinstance(module, _BatchNorm):
            continue
        momentum = config.norm_momentum
        if module in predictors and config.predictor_momentum is not None:
            momentum = config.predictor_momentum
        if momentum is not None:
            module.momentum = momentum
        if config.norm_eps is not None:
            module.eps = config.norm_eps
        if config.norm_start == "zero" and module.running_var is not None:
            module.running_var.zero_()


def norm_parameters(model: nn.Module) -> set[nn.Parameter]:
    """The gains and biases of every BatchNorm."""
    norms = (module for module in model.modules() if isinstance(module, _BatchNorm))
    return {parameter for norm in norms for parameter in norm.parameters()}
