"""Which similarities a layer or a model has, of whatever kind."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from .dynamic import DynamicLayer
from .positions import PositionSimilarity
from .predicted import PredictedSimilarity
from .static import SimilarityParametrization

__all__ = [
    "Similarity",
    "layer_similarities",
    "named_similarities",
    "predictor_modules",
    "static_similarities",
]

Similarity = SimilarityParametrization | PredictedSimilarity


def layer_similarities(module: nn.Module) -> dict[str, Similarity]:
    """The similarities of one layer: static by weight name, dynamic by predictor name."""
    if isinstance(module, DynamicLayer):
        return dict(module.predictions())
    return dict(static_similarities(module))


def static_similarities(module: nn.Module) -> dict[str, SimilarityParametrization]:
    """The static similarities of one layer, by weight name."""
    lists = getattr(module, "parametrizations", {})
    return {
        name: parametrization
        for name in lists
        for parametrization in lists[name]
        if isinstance(parametrization, SimilarityParametrization)
    }


def named_similarities(model: nn.Module) -> Iterator[tuple[str, Similarity | PositionSimilarity]]:
    """Every similarity of a model: ``"layer1.conv.weight"``, ``"layer2.conv.predictor"``.

    Global ones are modules of their own and carry their own name.
    """
    for path, module in model.named_modules():
        if isinstance(module, PositionSimilarity):
            yield path, module
        for name, similarity in layer_similarities(module).items():
            yield f"{path}.{name}" if path else name, similarity


def predictor_modules(model: nn.Module) -> set[nn.Module]:
    """Everything inside predictors: part of a similarity, not of the network it serves."""
    predictors = (m for m in model.modules() if isinstance(m, PredictedSimilarity))
    return {inner for predictor in predictors for inner in predictor.modules()}
