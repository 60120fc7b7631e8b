"""How many operations the similarity convolution takes, as PyTorch's ``FlopCounterMode`` asks.

Two per multiply-add. Weighting the patches, or mixing their taps, comes on top of the convolution,
and on top of each of its gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["backward_operations", "forward_operations"]

Shape = Sequence[int]


def forward_operations(
    input: Shape, weight: Shape, similarity: Shape, *_: Any, out_shape: Shape, **__: Any
) -> int:
    """Of the convolution; ``out_shape`` is the shape of its output."""
    N, O, P, Q = out_shape
    taps = weight[2] * weight[3]
    mixing = taps * input[1] * (taps if len(similarity) == 5 else 1)
    return 2 * N * P * Q * (O * weight[1] * taps + mixing)


def backward_operations(
    grad_output: Shape, input: Shape, weight: Shape, similarity: Shape, *settings: Any, **__: Any
) -> int:
    """Of those gradients that the mask, the last of the settings, asks for."""
    mask: Sequence[bool] = settings[-1]
    N, O, P, Q = grad_output
    products = 2 * N * P * Q * O * weight[1] * weight[2] * weight[3]
    whole = forward_operations(input, weight, similarity, out_shape=grad_output)
    # The gradients of the input and of M share one product with the kernels.
    return ((mask[0] or mask[2]) + mask[1]) * products + sum(mask) * (whole - products)
