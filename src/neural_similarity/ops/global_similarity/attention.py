"""Attention between positions in memory that grows with the positions, not with their square.

All functions take ``query`` and ``key`` as ``(N, D, L)`` and ``value`` as ``(N, C, L)``, and return
``(N, C, L)``: ``z[n,c,i] = Σ_j M[n,i,j] · value[n,c,j]``.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .._transforms import transformed

__all__ = ["product_attention", "softmax_attention"]

# Up to so many positions a channel M is no more than four maps in memory, and one product with it
# takes half the time or less: the fused kernels pay from some thousand positions.
_SMALL = 4


def product_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """``M = G1 G2ᵀ`` as ``G1 (G2ᵀ X)``: a D × C matrix stands between, and M is never formed."""
    return torch.bmm(torch.bmm(value, key.mT), query)


def softmax_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """``M = softmax(G1 G2ᵀ)``: with M on small maps, by PyTorch's fused attention on large ones."""
    device = query.device.type
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        # The backward pass runs outside of autocast: what it would round is rounded here.
        dtype = torch.get_autocast_dtype(device)
        query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    # A compiler differentiates once, and a choice by size would tie an exported program to it.
    if torch.compiler.is_compiling():
        return _fused(query, key, value)
    if transformed() or query.shape[2] <= _SMALL * value.shape[1]:
        return torch.bmm(value, _matrix(query, key).mT)
    output: Tensor = _Softmax.apply(query, key, value)  # type: ignore[no-untyped-call]
    return output


class _Softmax(torch.autograd.Function):
    """The fused kernels have no second derivative; where one is asked for, it is written out."""

    @staticmethod
    def forward(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return _fused(query, key, value)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, ...]:
        saved: tuple[Tensor, Tensor, Tensor] = ctx.saved_tensors
        if torch.is_grad_enabled():  # create_graph: this gradient will be differentiated
            return _written_out(*saved, gradient)
        leaves = tuple(tensor.detach().requires_grad_() for tensor in saved)
        with torch.enable_grad():
            output = _fused(*leaves)
        return torch.autograd.grad(output, leaves, gradient)


def _fused(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    # The kernels that keep memory small want one width, and the channels of a position side by
    # side. Zeros change no inner product.
    width = max(query.shape[1], value.shape[1])
    output = F.scaled_dot_product_attention(
        _one_head(query, width),
        _one_head(key, width),
        _one_head(value, width),
        scale=1.0,  # and not 1/√D
    )
    return output[:, 0, :, : value.shape[1]].mT


def _one_head(tensor: Tensor, width: int) -> Tensor:
    """``(N, D, L)`` as one head of the given width: ``(N, 1, L, width)``."""
    return F.pad(tensor.mT, (0, width - tensor.shape[1])).contiguous().unsqueeze(1)


def _written_out(query: Tensor, key: Tensor, value: Tensor, gradient: Tensor) -> tuple[Tensor, ...]:
    """The three gradients by plain operations, with M in memory."""
    M = _matrix(query, key)
    along_M = torch.bmm(gradient.mT, value)
    along_scores = M * (along_M - (along_M * M).sum(-1, keepdim=True))
    return (
        torch.bmm(key, along_scores.mT),
        torch.bmm(query, along_scores),
        torch.bmm(gradient, M),
    )


def _matrix(query: Tensor, key: Tensor) -> Tensor:
    return torch.bmm(query.mT, key).softmax(-1)
