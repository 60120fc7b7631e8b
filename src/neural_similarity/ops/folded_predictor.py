r"""A predictor in evaluation mode: two convolutions with bias, a ReLU between them.

.. math:: y = V * \mathrm{relu}\left(\frac{W * x}{\|X\|} + a\right) + b

with the weights W and V, which have BatchNorm folded in, its shifts a and b, and the length of the
patch X at each position. Compiled code computes it in one operation, which matters for small maps:
there, calling PyTorch's operations takes longer than computing them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from .similarity_conv import dispatch
from .similarity_conv.compiled import Kernels
from .sphere import EPS

__all__ = ["FoldedLayer", "folded_dynamic_conv2d", "folded_layer", "folded_predictor", "unchanged"]

Window = tuple[Sequence[int], Sequence[int], Sequence[int]]
"""Stride, padding and dilation of the first layer."""


class FoldedLayer(NamedTuple):
    """Weight and bias of a convolution, and its kernels in the order of the compiled code."""

    weight: Tensor
    shift: Tensor
    kernels: Tensor | None


def folded_layer(weight: Tensor, shift: Tensor) -> FoldedLayer:
    """A layer for many calls of :func:`folded_predictor`."""
    path = dispatch.choose(weight)
    kernels = path.predictor_kernels(weight) if isinstance(path, Kernels) else None
    return FoldedLayer(weight, shift.contiguous(), kernels)


def folded_predictor(
    input: Tensor, first: FoldedLayer, last: FoldedLayer, window: Window, sphere: bool
) -> Tensor:
    """The output for ``(N, C, H, W)``, without gradients; divided by lengths if ``sphere``."""
    path = dispatch.choose(input)
    if isinstance(path, Kernels) and first.kernels is not None and last.kernels is not None:
        output = path.predictor_inference(
            *(input, first.weight, first.kernels, first.shift),
            *(last.weight, last.kernels, last.shift, *window, sphere),
        )
        return cast(Tensor, output)
    if sphere:
        hidden = F.conv2d(input, first.weight, None, *window)
        squares = torch.linalg.vector_norm(input, 2, 1, keepdim=True).square_()
        ones = torch.ones_like(first.weight[:1, :1])
        lengths = F.conv2d(squares, ones, first.shift.new_full((1,), EPS), *window)
        hidden = torch.addcmul(first.shift[:, None, None], hidden, lengths.rsqrt_())
    else:
        hidden = F.conv2d(input, first.weight, first.shift, *window)
    keep_size = (last.weight.shape[2] // 2, last.weight.shape[3] // 2)
    return F.conv2d(hidden.relu_(), last.weight, last.shift, 1, keep_size)


def folded_dynamic_conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    start: Tensor,
    first: FoldedLayer,
    last: FoldedLayer,
    window: Window,
    groups: int,
) -> Tensor | None:
    """The similarity convolution with the diagonal ``start`` + :func:`folded_predictor`.

    It is one operation, for operands that fit each other; None without compiled code.
    """
    path = dispatch.choose(input)
    if not isinstance(path, Kernels) or first.kernels is None or last.kernels is None:
        return None
    output = path.layer_inference(
        *(input, weight, bias, start, first.weight, first.kernels, first.shift),
        *(last.weight, last.kernels, last.shift, *window, groups),
    )
    return cast(Tensor, output)


def unchanged(copies: list[Tensor], tensors: list[Tensor]) -> bool:
    """Whether these tensors have the values of their copies."""
    path = dispatch.choose(tensors[0])
    if isinstance(path, Kernels):
        return bool(path.unchanged(copies, tensors))
    return all(map(torch.equal, copies, tensors))
