"""The readable reference for the similarity convolution: unfold, mix the taps, multiply.

Every fast path matches this function, in the output and in each derivative. It stores the patches
of the whole batch; it is meant for reading and for tests.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..._shapes import output_size

__all__ = ["similarity_conv2d"]

# How M (with axes i, j: kernel tap, patch tap) mixes patches of shape (N, S, C/S, K, L).
_MIX = {
    1: "i,nscil->nscil",
    2: "ij,nscjl->nscil",
    4: "nsil,nscil->nscil",
    5: "nijl,nscjl->nscil",
}


def similarity_conv2d(
    input: Tensor,
    weight: Tensor,
    similarity: Tensor,
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
    groups: int,
    similarity_groups: int = 1,
) -> Tensor:
    """``y[n,o,l] = Σ_c Σ_i Σ_j W[o,c,i] · M[n,s(c),i,j,l] · X[n,c,j,l]``, X the patches, s(c) the
    group of channel c."""
    N = input.shape[0]
    O, C_group, kh, kw = weight.shape
    C_similar = input.shape[1] // similarity_groups  # channels with the same M
    P, Q = map(output_size, input.shape[2:], (kh, kw), stride, padding, dilation)
    patches = F.unfold(input, (kh, kw), dilation, padding, stride)
    patches_nsckl = patches.reshape(N, similarity_groups, C_similar, kh * kw, P * Q)
    mix = _MIX[similarity.dim()]
    if similarity.dim() > 2:
        similarity = similarity.expand(N, *similarity.shape[1:-2], P, Q).flatten(-2)
    if similarity.dim() == 3:
        similarity = similarity.reshape(N, similarity_groups, kh * kw, P * Q)
    mixed_nsckl = torch.einsum(mix, similarity, patches_nsckl)
    mixed_ngckl = mixed_nsckl.reshape(N, groups, C_group, kh * kw, P * Q)
    kernels_gock = weight.reshape(groups, O // groups, C_group, kh * kw)
    output_ngol = torch.einsum("gock,ngckl->ngol", kernels_gock, mixed_ngckl)
    return output_ngol.reshape(N, O, P, Q)
