"""Which similarities a layer or a model has, of any kind, and which of them it uses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import nn

from .dynamic import DynamicLayer, PredictedSimilarity
from .parametrization import SimilarityParametrization, activate_static, static_by_name
from .positions import PositionSimilarity

__all__ = [
    "Similarity",
    "activate",
    "active_name",
    "layer_similarities",
    "named_similarities",
    "predictor_modules",
    "similarities_by_name",
    "static_similarities",
]

Similarity = SimilarityParametrization | PredictedSimilarity


def layer_similarities(module: nn.Module) -> dict[str, Similarity]:
    """The active similarities of one layer: static by weight name, dynamic by predictor name."""
    if isinstance(module, DynamicLayer):
        return dict(module.predictions())
    return dict(static_similarities(module))


def static_similarities(module: nn.Module) -> dict[str, SimilarityParametrization]:
    """The active static similarities of one layer, by weight name."""
    return {
        weight: similarity
        for similarities in static_by_name(module).values()
        for weight, similarity in similarities.items()
        if similarity.active
    }


def similarities_by_name(module: nn.Module) -> Mapping[str, Mapping[str, Similarity]]:
    """Every similarity of one layer, active or not: by its name, as :func:`layer_similarities`."""
    return module.by_name() if isinstance(module, DynamicLayer) else static_by_name(module)


def active_name(module: nn.Module) -> str | None:
    """The name of the similarity that a layer uses; None without one."""
    if isinstance(module, DynamicLayer):
        return module.active
    return next((s.name for s in static_similarities(module).values()), None)


def activate(module: nn.Module, name: str | None) -> None:
    """Make a layer use only its similarity of this name, if it has one."""
    if isinstance(module, DynamicLayer):
        module.active = name if name in module.installed else None
    else:
        activate_static(module, name)


def named_similarities(model: nn.Module) -> Iterator[tuple[str, Similarity | PositionSimilarity]]:
    """Every active similarity of a model: ``"layer1.conv.weight"``, ``"layer2.conv.predictor"``.

    Global ones are modules themselves and have their own path.
    """
    for path, module in model.named_modules():
        if isinstance(module, PositionSimilarity):
            yield path, module
        for name, similarity in layer_similarities(module).items():
            yield f"{path}.{name}" if path else name, similarity


def predictor_modules(model: nn.Module) -> set[nn.Module]:
    """Every module inside a predictor: part of a similarity, not of the network it serves."""
    predictors = (m for m in model.modules() if isinstance(m, PredictedSimilarity))
    return {inner for predictor in predictors for inner in predictor.modules()}
