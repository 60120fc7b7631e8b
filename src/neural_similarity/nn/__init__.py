"""Layers with state."""

from .dynamic import DynamicConv1d, DynamicConv2d, DynamicLinear, DynamicLSTMCell
from .global_ import GlobalSimilarityConv2d
from .positions import SelfAttention2d
from .sphere import SphereConv2d, SphereLinear
from .static import StaticConv2d

__all__ = [
    "DynamicConv1d",
    "DynamicConv2d",
    "DynamicLSTMCell",
    "DynamicLinear",
    "GlobalSimilarityConv2d",
    "SelfAttention2d",
    "SphereConv2d",
    "SphereLinear",
    "StaticConv2d",
]
