"""The readable reference for global similarity: both matrices in full, multiplied.

Every fast path matches it, in the output and in each derivative. W_G has C·L × O·L entries and M_G
has C·L × C·L (with L positions), so this is only for reading and for tests.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["attention_matrix", "block_matrix", "global_similarity_conv2d", "toeplitz"]


def global_similarity_conv2d(
    input: Tensor, weight: Tensor, similarity: Tensor, dilation: tuple[int, int], groups: int
) -> Tensor:
    """``F = W_Gᵀ M_G X_F`` of every sample, for all kernels at once."""
    N, C, H, W = input.shape
    W_G = toeplitz(weight, (H, W), dilation, groups)
    matrices = block_matrix(similarity, (H, W)).expand(N, -1, -1)
    identity = torch.eye(C).to(input)
    outputs = [
        W_G.T @ torch.kron(identity, M) @ X_F
        for M, X_F in zip(matrices, input.reshape(N, -1), strict=True)
    ]
    return torch.stack(outputs).reshape(N, -1, H, W)


def toeplitz(
    weight: Tensor, size: tuple[int, int], dilation: tuple[int, int], groups: int
) -> Tensor:
    """W_G, ``(C·L, O·L)``: its transpose is the size-preserving convolution as one matrix.

    Every tap of the kernel shifts the map by a fixed offset. W_Gᵀ is the sum over taps of the tap's
    weights ``(O, C)`` times its shift ``(L, L)``. Outside the map there are zeros.
    """
    O, C_group, kh, kw = weight.shape
    C = C_group * groups
    dense = weight.new_zeros(O, C, kh, kw)
    for o in range(O):
        first = o // (O // groups) * C_group
        dense[o, first : first + C_group] = weight[o]
    L = size[0] * size[1]
    transposed = weight.new_zeros(O * L, C * L)
    for a in range(kh):
        for b in range(kw):
            down = _shift(size[0], (a - kh // 2) * dilation[0]).to(weight)
            right = _shift(size[1], (b - kw // 2) * dilation[1]).to(weight)
            transposed = transposed + torch.kron(dense[:, :, a, b], torch.kron(down, right))
    return transposed.T


def block_matrix(similarity: Tensor, size: tuple[int, int]) -> Tensor:
    """The block of M_G as ``(1 or N, L, L)``, from any shape the operation takes."""
    L = size[0] * size[1]
    if similarity.shape[-2:] == (L, L):
        return similarity if similarity.dim() == 3 else similarity[None]
    mask = similarity if similarity.dim() == 3 else similarity[None]
    return torch.diag_embed(mask.flatten(1))


def attention_matrix(query: Tensor, key: Tensor, softmax: bool) -> Tensor:
    """``M[n,i,j] = Σ_d query[n,d,i] · key[n,d,j]``, or its softmax over j."""
    scores = torch.einsum("ndi,ndj->nij", query.flatten(2), key.flatten(2))
    return scores.softmax(-1) if softmax else scores


def _shift(size: int, offset: int) -> Tensor:
    """``(S x)[i] = x[i + offset]``, zero beyond the ends."""
    if abs(offset) >= size:
        return torch.zeros(size, size)
    return torch.diag(torch.ones(size - abs(offset)), offset)
