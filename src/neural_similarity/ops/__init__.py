"""Pure tensor functions, without state."""

from .effective_weight import effective_weight
from .similarity_conv import similarity_conv2d
from .sphere import sphere_conv2d, sphere_linear

__all__ = ["effective_weight", "similarity_conv2d", "sphere_conv2d", "sphere_linear"]
