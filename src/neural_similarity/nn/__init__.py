"""Layers with a similarity, and what predicts it."""

from . import family
from .dynamic import (
    DynamicConv1d,
    DynamicConv2d,
    DynamicLinear,
    DynamicLSTMCell,
    PredictedSimilarity,
)
from .global_ import GlobalSimilarityConv2d
from .positions import SelfAttention2d
from .predictors import (
    PredictorConfig,
    PredictorNetwork,
    Window,
    list_predictors,
    register_predictor,
)
from .sphere import SphereConv2d, SphereLinear
from .static import SimilarityParametrization, StaticConv2d

__all__ = [
    "DynamicConv1d",
    "DynamicConv2d",
    "DynamicLSTMCell",
    "DynamicLinear",
    "GlobalSimilarityConv2d",
    "PredictedSimilarity",
    "PredictorConfig",
    "PredictorNetwork",
    "SelfAttention2d",
    "SimilarityParametrization",
    "SphereConv2d",
    "SphereLinear",
    "StaticConv2d",
    "Window",
    "family",
    "list_predictors",
    "register_predictor",
]
