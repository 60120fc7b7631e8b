"""Pure tensor functions, without state."""

from .effective_weight import Scope, effective_weight
from .global_similarity import global_similarity_conv2d, mix_positions, position_attention
from .pair_similarity import pair_similarity
from .similarity_conv import similarity_conv2d
from .sphere import sphere_conv2d, sphere_linear

__all__ = [
    "Scope",
    "effective_weight",
    "global_similarity_conv2d",
    "mix_positions",
    "pair_similarity",
    "position_attention",
    "similarity_conv2d",
    "sphere_conv2d",
    "sphere_linear",
]
