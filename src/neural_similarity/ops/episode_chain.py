r"""A chain of convolutions for several episodes at once, each with its own kernels.

.. math:: x^{(l+1)}_{b,n} = \mathrm{ReLU}\bigl(\mathrm{pool}\bigl(
    s^{(l)} \odot (W^{(l)}_b \odot m^{(l)}_b) * x^{(l)}_{b,n} + t^{(l)}\bigr)\bigr)

with layer l, episode b, image n, one factor m for each tap, a scale s and a shift t for each
channel. Compiled code takes each image through all layers, forward and backward, while its maps are
in the cache (``similarity_conv/kernels/episodes.h``).
"""

from __future__ import annotations

from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from .similarity_conv import dispatch
from .similarity_conv.compiled import Kernels

__all__ = ["ChainLayers", "can_run_chain", "chain_features", "chain_gradients", "reference_chain"]


class ChainLayers(NamedTuple):
    """The operands of a chain; one entry per layer.

    Args:
        weights: W, ``(B, O, C, kh, kw)``, or ``(1, O, C, kh, kw)`` shared by all episodes.
        factors: m, ``(B, kh·kw)``; ``(0, 0)`` for none. They need a shared W.
        scales, shifts: s and t, ``(O,)``.
        padding: two numbers per layer, top and left; the stride is 1.
        pools: 1 where 2×2 max pooling follows.
    """

    weights: list[Tensor]
    factors: list[Tensor]
    scales: list[Tensor]
    shifts: list[Tensor]
    padding: list[int]
    pools: list[int]


def can_run_chain(images: Tensor) -> bool:
    """Whether there is compiled code for images like these."""
    return isinstance(dispatch.choose(images), Kernels)


def chain_features(inputs: Tensor, layers: ChainLayers) -> Tensor:
    """Features ``(B, n, D)`` of images ``(B, n, C, H, W)``; requires :func:`can_run_chain`."""
    kernels = cast(Kernels, dispatch.choose(inputs))
    return cast(Tensor, kernels.episode_features(inputs, *layers))


def chain_gradients(
    inputs: Tensor, layers: ChainLayers, weight: Tensor, bias: Tensor, labels: Tensor, rows: Tensor
) -> list[Tensor]:
    """Gradients of the mean cross-entropy of a linear classifier on the features of some images.

    Args:
        inputs: ``(B, n, C, H, W)``.
        layers: the chain.
        weight, bias: the classifier of each episode, ``(B, n_way, D)`` and ``(B, n_way)``.
        labels: ``(n,)``, the same in all episodes.
        rows: which of the n images.

    Returns:
        One gradient per layer, of its factors or, without factors, of its W; then those of weight
        and bias.
    """
    kernels = cast(Kernels, dispatch.choose(inputs))
    return list(kernels.episode_gradients(inputs, rows, labels, *layers, weight, bias))


def reference_chain(inputs: Tensor, layers: ChainLayers) -> Tensor:
    """The definition of :func:`chain_features`, as separate operations."""
    features = []
    for b, maps in enumerate(inputs):
        for l, (W, m) in enumerate(zip(layers.weights, layers.factors, strict=True)):
            kernel = W[b] if len(W) > 1 else W[0]
            kernel = kernel * m[b].view(kernel.shape[2:]) if m.numel() else kernel
            padding = layers.padding[2 * l], layers.padding[2 * l + 1]
            maps = F.conv2d(maps, kernel, padding=padding)
            maps = maps * layers.scales[l].view(-1, 1, 1) + layers.shifts[l].view(-1, 1, 1)
            maps = (F.max_pool2d(maps, 2) if layers.pools[l] else maps).relu()
        features.append(maps.flatten(1))
    return torch.stack(features)
