"""Attention between positions; memory grows with their number, not with its square.

All functions take ``query`` and ``key`` as ``(N, D, L)`` and ``value`` as ``(N, C, L)``, and return
``(N, C, L)``: ``z[n,c,i] = Σ_j M[n,i,j] · value[n,c,j]``.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..._autocast import is_autocast_enabled
from .._transforms import transformed

__all__ = ["product_attention", "softmax_attention"]

# Up to this many positions per channel, M takes no more memory than four maps, and one product with
# it takes half the time or less. The fused kernels are faster from about a thousand positions on.
_SMALL = 4


def product_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """``M = G1 G2ᵀ`` applied as ``G1 (G2ᵀ X)``, through a D × C matrix: M is never formed."""
    return torch.bmm(torch.bmm(value, key.mT), query)


def softmax_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """``M = softmax(G1 G2ᵀ)``: forms M for small maps, uses PyTorch's fused attention for large."""
    if is_autocast_enabled(query.device):
        # The backward pass runs outside of autocast, so cast here, as autocast would.
        dtype = torch.get_autocast_dtype(query.device.type)
        query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    # A compiler differentiates once, and a choice by size would fix the size of exported programs.
    if torch.compiler.is_compiling():
        return _fused(query, key, value)
    if transformed() or query.shape[2] <= _SMALL * value.shape[1]:
        return torch.bmm(value, _matrix(query, key).mT)
    output: Tensor = _Softmax.apply(query, key, value)  # type: ignore[no-untyped-call]
    return output


class _Softmax(torch.autograd.Function):
    """Fused attention whose second derivative, which PyTorch lacks, is computed explicitly."""

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
            return _explicit_gradients(*saved, gradient)
        leaves = tuple(tensor.detach().requires_grad_() for tensor in saved)
        with torch.enable_grad():
            output = _fused(*leaves)
        return torch.autograd.grad(output, leaves, gradient)


def _fused(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    # The memory-efficient kernels need equal widths, and the channels of a position adjacent in
    # memory. Added zeros change no inner product.
    width = max(query.shape[1], value.shape[1])
    output = F.scaled_dot_product_attention(
        _one_head(query, width),
        _one_head(key, width),
        _one_head(value, width),
        scale=1.0,  # and not 1/√D
    )
    return output[:, 0, :, : value.shape[1]].mT


def _one_head(tensor: Tensor, width: int) -> Tensor:
    """``(N, D, L)`` as one head of this width: ``(N, 1, L, width)``."""
    return F.pad(tensor.mT, (0, width - tensor.shape[1])).contiguous().unsqueeze(1)


def _explicit_gradients(
    query: Tensor, key: Tensor, value: Tensor, gradient: Tensor
) -> tuple[Tensor, ...]:
    """The three gradients with plain operations, which form M."""
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
