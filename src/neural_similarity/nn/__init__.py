"""Layers with state."""

from .dynamic import DynamicConv1d, DynamicConv2d, DynamicLinear, DynamicLSTMCell
from .sphere import SphereConv2d, SphereLinear
from .static import StaticConv2d

__all__ = [
    "DynamicConv1d",
    "DynamicConv2d",
    "DynamicLSTMCell",
    "DynamicLinear",
    "SphereConv2d",
    "SphereLinear",
    "StaticConv2d",
]
