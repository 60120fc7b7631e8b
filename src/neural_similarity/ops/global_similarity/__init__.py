"""Similarity over whole feature maps (Appendix B)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ... import _check
from ..._shapes import pair, same_padding
from .attention import product_attention, softmax_attention

__all__ = ["global_similarity_conv2d", "mix_positions", "position_attention"]


def global_similarity_conv2d(
    input: Tensor,
    weight: Tensor,
    similarity: Tensor,
    bias: Tensor | None = None,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Tensor:
    r"""A size-preserving convolution of a map whose positions are first mixed by a similarity.

    .. math:: F = W_G^\top M_G X_F, \qquad
        y_{n,o,l} = b_o + \sum_c \sum_i W_{o,c,i} \sum_j M_{n,l(i),j} \, X_{n,c,j}

    with sample n, kernel o, output position l, input channel c of the kernel's group, kernel tap
    i, l(i) the position under that tap (nothing outside the map), and j every position of the
    map. The paper's :math:`M_G^s` is ``similarity``, shared by all channels; :math:`W_G` is the
    convolution as a Toeplitz matrix, stride 1.

    Args:
        input: ``(N, C, H, W)`` or ``(C, H, W)``.
        weight: ``(O, C/G, kh, kw)`` with odd kh and kw.
        similarity: as in :func:`mix_positions`.
        bias, dilation, groups: as in :func:`torch.nn.functional.conv2d`.

    Returns:
        ``(N, O, H, W)``, or ``(O, H, W)`` for an unbatched input.

    Cost in multiply-adds per sample, with L = H·W positions: those of the convolution, plus ``L·C``
    for a mask or ``L²·C`` for a matrix.

    Example:
        >>> input, weight = torch.randn(2, 3, 8, 6), torch.randn(5, 3, 3, 3)
        >>> global_similarity_conv2d(input, weight, torch.rand(8, 6)).shape      # a mask
        torch.Size([2, 5, 8, 6])
        >>> global_similarity_conv2d(input, weight, torch.rand(48, 48)).shape    # a matrix
        torch.Size([2, 5, 8, 6])
    """
    where = "global_similarity_conv2d"
    if input.dim() == 3:
        return global_similarity_conv2d(
            input[None], weight, similarity, bias, dilation, groups
        )[0]  # fmt: skip
    dilation = pair(dilation)
    kernel = (weight.shape[-2], weight.shape[-1]) if weight.dim() == 4 else (1, 1)
    _check.odd_kernel(where, kernel)
    padding = (same_padding(kernel[0], dilation[0])[0], same_padding(kernel[1], dilation[1])[0])
    _check.conv_output_shape(where, input, weight, bias, (1, 1), padding, dilation, groups)
    mixed = _mix(where, input, similarity)
    return F.conv2d(mixed, weight, bias, 1, padding, dilation, groups)


def mix_positions(input: Tensor, similarity: Tensor) -> Tensor:
    r"""The similarity alone: :math:`(M_G X)_{n,c,i} = \sum_j M_{n,i,j} \, X_{n,c,j}`.

    Args:
        input: ``(N, C, H, W)`` or ``(C, H, W)``.
        similarity: one of, with L = H·W positions counted row by row,

            * ``(H, W)`` a static diagonal, that is, a mask over the map,
            * ``(L, L)`` a static matrix,
            * ``(N, H, W)`` a mask for each sample,
            * ``(N, L, L)`` a matrix for each sample;

            a batch of 1 is used for every sample.

    Returns:
        A map of the input's shape.
    """
    if input.dim() == 3:
        return mix_positions(input[None], similarity)[0]
    return _mix("mix_positions", input, similarity)


def position_attention(
    query: Tensor, key: Tensor, value: Tensor, *, softmax: bool = True
) -> Tensor:
    r"""A similarity computed from two maps, applied to a third: self-attention between positions.

    .. math:: z_{n,c,i} = \sum_j M_{n,i,j} \, v_{n,c,j}, \qquad
        M_{n,i,j} = \sum_d q_{n,d,i} \, k_{n,d,j}

    and a softmax of M over j if ``softmax`` is true. The appendix's :math:`G_1(X)` and
    :math:`G_2(X)` are ``query`` and ``key``, and X is ``value``. As there, the inner products are
    not scaled.

    Args:
        query, key: ``(N, D, H, W)``.
        value: ``(N, C, H, W)``.

    Cost in multiply-adds per sample, with L = H·W: ``2·L·C·D`` without softmax, as
    :math:`G_1 (G_2^\top X)`; ``L²·(C + D)`` with it, or ``2·L²·max(C, D)`` if L > 4·C.
    Memory grows with L: an M larger than four maps is never formed, except for second derivatives
    of the softmax, and within ``torch.func``.

    Example:
        >>> (query, key), value = torch.randn(2, 2, 3, 8, 6), torch.ones(2, 5, 8, 6)
        >>> position_attention(query, key, value).allclose(value)    # rows of a softmax sum to one
        True
    """
    _check.attention_maps("position_attention", query, key, value)
    attend = softmax_attention if softmax else product_attention
    return attend(query.flatten(2), key.flatten(2), value.flatten(2)).reshape(value.shape)


def _mix(where: str, input: Tensor, similarity: Tensor) -> Tensor:
    if _check.global_similarity(where, input, similarity) == "mask":
        return input * similarity.unsqueeze(-3)  # the same for all channels
    return torch.matmul(input.flatten(2), similarity.mT).reshape(input.shape)
