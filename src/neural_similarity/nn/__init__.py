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
from .sphere import SphereConv2d, SphereLinear
from .static import SimilarityParametrization, StaticConv2d

__all__ = [
    "DynamicConv1d",
    "DynamicConv2d",
    "DynamicLSTMCell",
    "DynamicLinear",
    "GlobalSimilarityConv2d",
    "PredictedSimilarity",
    "SelfAttention2d",
    "SimilarityParametrization",
    "SphereConv2d",
    "SphereLinear",
    "StaticConv2d",
    "family",
]
