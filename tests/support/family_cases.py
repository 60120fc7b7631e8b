"""Every layer of ``nn.family`` in several geometries: small, odd, with sizes that differ."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from neural_similarity.nn.family import (
    BilateralFilter2d,
    Involution2d,
    LocalAttention2d,
    ModulatedConv2d,
    PixelAdaptiveConv2d,
    SpatialAttentionConv2d,
    SpatialTransformer2d,
    SqueezeExciteConv2d,
)

from . import family_definitions as by_definition


class Case(NamedTuple):
    definition: Callable[..., Tensor]
    layer: Callable[[], nn.Module]
    inputs: tuple[tuple[int, ...], ...]


def transformer() -> SpatialTransformer2d:
    pooled = nn.Sequential(nn.AdaptiveAvgPool2d((2, 1)), nn.Flatten(), nn.Linear(6, 6))
    return SpatialTransformer2d(pooled)


WIDE = {"stride": (2, 1), "padding": (3, 1), "dilation": (1, 2)}

CASES = {
    "involution": Case(
        by_definition.involution,
        lambda: Involution2d(6, (3, 5), group_channels=2, reduction=2),
        ((2, 6, 5, 7),),
    ),
    "involution, strided": Case(
        by_definition.involution,
        lambda: Involution2d(6, 3, (2, 3), group_channels=3, reduction=3),
        ((2, 6, 7, 8),),
    ),
    "attention": Case(
        by_definition.local_attention,
        lambda: LocalAttention2d(3, 8, (3, 5), heads=2),
        ((2, 3, 5, 6),),
    ),
    "attention, strided": Case(
        by_definition.local_attention,
        lambda: LocalAttention2d(3, 4, 3, stride=(2, 3), heads=1, bias=True),
        ((2, 3, 7, 8),),
    ),
    "attention, dilated": Case(
        by_definition.local_attention,
        lambda: LocalAttention2d(3, 4, (5, 3), (1, 2), (1, 3), 2, dilation=(2, 1)),
        ((2, 3, 9, 5),),
    ),
    "pixel-adaptive": Case(
        by_definition.pixel_adaptive,
        lambda: PixelAdaptiveConv2d(4, 6, (3, 5), **WIDE, groups=2),
        ((2, 4, 7, 8), (2, 3, 7, 8)),
    ),
    "pixel-adaptive, normalised": Case(
        by_definition.pixel_adaptive,
        lambda: PixelAdaptiveConv2d(3, 4, 3, 2, 1, 1, False, normalize_kernel=True),
        ((2, 3, 6, 7), (2, 2, 6, 7)),
    ),
    "modulated": Case(
        by_definition.modulated,
        lambda: ModulatedConv2d(4, 6, (3, 2), **WIDE, groups=2, deform_groups=4),
        ((2, 4, 6, 7),),
    ),
    "modulated, one group": Case(
        by_definition.modulated,
        lambda: ModulatedConv2d(3, 4, 3, padding=1, bias=False),
        ((2, 3, 5, 6),),
    ),
    "squeeze-excite": Case(
        by_definition.squeeze_excite,
        lambda: SqueezeExciteConv2d(4, 6, (3, 2), **WIDE, groups=2, reduction=2),
        ((2, 4, 6, 7),),
    ),
    "spatial attention": Case(
        by_definition.spatial_attention,
        lambda: SpatialAttentionConv2d(4, 6, (3, 2), **WIDE, groups=2, temperature=2.5),
        ((2, 4, 6, 7),),
    ),
    "spatial attention, one tap": Case(
        by_definition.spatial_attention,
        lambda: SpatialAttentionConv2d(3, 4, 1, bias=True, min_channels=2, reduction=0.7),
        ((2, 3, 5, 4),),
    ),
    "bilateral": Case(
        by_definition.bilateral,
        lambda: BilateralFilter2d((3, 5), sigma_space=1.3, sigma_colour=0.8),
        ((2, 3, 5, 7),),
    ),
    "bilateral, guided": Case(
        by_definition.bilateral,
        lambda: BilateralFilter2d(3, sigma_space=0.7, sigma_colour=1.5),
        ((2, 2, 5, 4), (2, 3, 5, 4)),
    ),
    "spatial transformer": Case(
        by_definition.spatial_transformer,
        transformer,
        ((2, 3, 5, 6),),
    ),
}


def build(name: str, dtype: torch.dtype = torch.float64) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """A layer as training leaves it, in evaluation mode, and its inputs."""
    torch.manual_seed(len(name))
    layer = CASES[name].layer().to(dtype).eval()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
        for module in layer.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.normal_()
                module.running_var.uniform_(0.5, 2)
    return layer, tuple(torch.randn(shape, dtype=dtype) for shape in CASES[name].inputs)
