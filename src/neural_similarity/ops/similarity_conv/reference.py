"""The readable reference of the similarity convolution: unfold, mix the taps, multiply.

Every fast path equals this function, forward and in each derivative. It stores the patches of the
whole batch; it is meant for reading and for tests.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..._shapes import output_size

__all__ = ["similarity_conv2d"]

# How M (with axes i, j: kernel tap, patch tap) mixes patches of shape (N, G, C/G, K, L).
_MIX = {
    1: "i,ngcil->ngcil",
    2: "ij,ngcjl->ngcil",
    3: "nil,ngcil->ngcil",
    4: "nijl,ngcjl->ngcil",
}


def similarity_conv2d(
    input: Tensor,
    weight: Tensor,
    similarity: Tensor,
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
    groups: int,
) -> Tensor:
    """``y[n,o,l] = Σ_c Σ_i Σ_j W[o,c,i] · M[n,i,j,l] · X[n,c,j,l]``, X the patches of the input."""
    N = input.shape[0]
    O, C_group, kh, kw = weight.shape
    P, Q = map(output_size, input.shape[2:], (kh, kw), stride, padding, dilation)
    patches = F.unfold(input, (kh, kw), dilation, padding, stride)
    patches_ngckl = patches.reshape(N, groups, C_group, kh * kw, P * Q)
    if similarity.dim() > 2:
        similarity = similarity.flatten(-2).expand(N, *(-1 for _ in similarity.shape[2:]))
    mixed_ngckl = torch.einsum(_MIX[similarity.dim()], similarity, patches_ngckl)
    kernels_gock = weight.reshape(groups, O // groups, C_group, kh * kw)
    output_ngol = torch.einsum("gock,ngckl->ngol", kernels_gock, mixed_ngckl)
    return output_ngol.reshape(N, O, P, Q)
