"""Which parameters decay, and how fast."""

from __future__ import annotations

from torch import nn

from ...convert import similarity_parameters
from ...nn.inventory import predictor_modules, static_similarities
from ...nn.positions import PositionSimilarity
from ..settings import Settings
from .norms import norm_parameters

__all__ = ["AUTHORS_DECAY", "weight_decays"]

AUTHORS_DECAY = 5e-3  # weight decay of an unconstrained static M in the authors' code


def weight_decays(config: Settings, model: nn.Module) -> dict[nn.Parameter, float]:
    """The weight decay of every parameter that is not frozen, in model order.

    Weights, filters, a static M, predictors and BatchNorm have separate settings. Biases and
    kernel shapes do not decay.
    """
    similarities = [s for module in model.modules() for s in static_similarities(module).values()]
    static = {parameter for similarity in similarities for parameter in similarity.parameters()}
    undecayed = {
        parameter
        for similarity in similarities
        for name, parameter in similarity.numbers.items()
        if not similarity.structure.decays(name)
    }
    predictors = set(similarity_parameters(model)) - static
    norms, filters = norm_parameters(model), _filters(model)

    def decay(parameter: nn.Parameter) -> float:
        if parameter in norms:
            return config.norm_decay
        if parameter in undecayed or (parameter.dim() < 2 and parameter not in static):
            return 0.0
        if parameter in static:
            return _or(config.similarity_decay, _static_decay(config))
        if parameter in predictors:
            return _or(config.predictor_decay, config.weight_decay)
        return _or(config.filter_decay if parameter in filters else None, config.weight_decay)

    return {p: decay(p) for p in model.parameters() if p.requires_grad}


def _filters(model: nn.Module) -> set[nn.Parameter]:
    """Weights of convolutions outside predictors, attention and classifier."""
    get_classifier = getattr(model, "get_classifier", None)
    apart = [module for module in model.modules() if isinstance(module, PositionSimilarity)]
    classifier = [get_classifier()] if callable(get_classifier) else []
    others = {m for part in (*apart, *classifier) for m in part.modules()}
    others |= predictor_modules(model)
    filters: set[nn.Parameter] = set()
    for module in model.modules():
        if isinstance(module, (nn.Conv1d, nn.Conv2d, nn.Conv3d)) and module not in others:
            # With a static similarity the weight has another name.
            names = ("weight", "parametrizations.weight.original")
            filters |= {p for name, p in module.named_parameters() if name in names}
    return filters


def _static_decay(config: Settings) -> float:
    return AUTHORS_DECAY if config.structure == "unconstrained" else config.weight_decay


def _or(value: float | None, otherwise: float) -> float:
    return otherwise if value is None else value
