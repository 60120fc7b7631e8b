"""Pure tensor functions, without state."""

from .effective_weight import effective_weight
from .similarity_conv import similarity_conv2d

__all__ = ["effective_weight", "similarity_conv2d"]
