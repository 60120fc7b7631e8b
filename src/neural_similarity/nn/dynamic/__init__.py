"""Dynamic similarity (Section 3.3): layers whose M is predicted from their input."""

from .base import DynamicLayer
from .layers import DynamicConv1d, DynamicConv2d, DynamicLinear, DynamicLSTMCell
from .predicted import PredictedSimilarity
from .similarity import DynamicSimilarity

__all__ = [
    "DynamicConv1d",
    "DynamicConv2d",
    "DynamicLSTMCell",
    "DynamicLayer",
    "DynamicLinear",
    "DynamicSimilarity",
    "PredictedSimilarity",
]
