"""Published layers that compute ``Wᵀ M X``: each is a choice of M, of W, and of what predicts M.

The guide ``docs/family.md`` compares them. The method ``similarity`` of a layer returns its M.
"""

from .bilateral import BilateralFilter2d
from .involution import Involution2d
from .local_attention import LocalAttention2d
from .modulated import ModulatedConv2d
from .pixel_adaptive import PixelAdaptiveConv2d
from .spatial_attention import SpatialAttentionConv2d
from .spatial_transformer import SpatialTransformer2d
from .squeeze_excite import SqueezeExciteConv2d

__all__ = [
    "BilateralFilter2d",
    "Involution2d",
    "LocalAttention2d",
    "ModulatedConv2d",
    "PixelAdaptiveConv2d",
    "SpatialAttentionConv2d",
    "SpatialTransformer2d",
    "SqueezeExciteConv2d",
]
