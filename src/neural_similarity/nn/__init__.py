"""Layers with state."""

from .static import StaticConv2d, StaticSimilarity

__all__ = ["StaticConv2d", "StaticSimilarity"]
