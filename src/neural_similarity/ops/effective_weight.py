"""``Mᵀ W``: the only place that decides where the transpose goes (Section 3.2)."""

from __future__ import annotations

from math import prod
from typing import Literal, get_args

import torch
from torch import Tensor

from .. import _check
from ..errors import ShapeError

__all__ = ["SCOPES", "Scope", "effective_weight", "similarity_blocks"]

Scope = Literal["layer", "channel", "kernel", "full"]
SCOPES: tuple[str, ...] = get_args(Scope)


def effective_weight(
    weight: Tensor, similarity: Tensor, *, scope: Scope = "layer", groups: int = 1
) -> Tensor:
    r"""The kernel of the plain convolution that is equivalent to this static similarity.

    .. math:: \hat W_{o,c,j} = \sum_i M_{i,j} \, W_{o,c,i}
        \quad\text{so that}\quad \hat W^\top X = W^\top M X

    with kernel o, input channel c, taps i and j. The paper's :math:`M_s` is ``similarity`` and
    its :math:`M^\top W` the result.

    Args:
        weight: kernels, ``(O, C/G, *taps)`` with any number of tap axes.
        similarity: the diagonal ``(*leading, n)`` or the whole matrix ``(*leading, n, n)``; see
            :func:`similarity_blocks` for ``leading`` and ``n``.
        scope: what shares one M. ``"layer"``: everything (the paper's default). ``"channel"``:
            one block per input channel. ``"kernel"``: one per kernel. ``"full"``: the
            :math:`CHV \times CHV` matrix of Equation 1, shared by all kernels.
        groups: as in the convolution. It only matters for ``"channel"``, where each of the C
            channels of all groups has its own block; with ``"full"`` the groups share M.

    Returns:
        A tensor of ``weight``'s shape and memory format.

    Cost: ``O·C·K`` multiply-adds for a diagonal, ``O·C·K·n`` for a matrix, for any image size.

    Example:
        >>> weight = torch.arange(4.0).reshape(1, 1, 2, 2)
        >>> swap = torch.eye(4)[[1, 0, 2, 3]]        # tap 0 of the kernel meets tap 1 of the patch
        >>> effective_weight(weight, swap).flatten().tolist()
        [1.0, 0.0, 2.0, 3.0]
    """
    leading, n = similarity_blocks(weight, scope, groups)
    _check.weight_similarity("effective_weight", similarity, leading, n, scope)
    O, C, *taps = weight.shape
    if similarity.dim() == len(leading) + 1:
        return weight * _beside_weight(similarity, weight, scope, groups)
    if scope == "channel":
        rows = weight.reshape(groups, O // groups, C, n)
        mixed = torch.einsum("goci,gcij->gocj", rows, similarity.reshape(groups, C, n, n))
    elif scope == "kernel":
        mixed = torch.bmm(weight.reshape(O, C, n), similarity)
    else:
        mixed = weight.reshape(-1, n) @ similarity
    return _in_format_of(weight, mixed.reshape(O, C, *taps))


def similarity_blocks(weight: Tensor, scope: Scope, groups: int = 1) -> tuple[tuple[int, ...], int]:
    """How many similarities a scope has and how large each is: ``(leading, n)``.

    ==========  ==============  ===========
    scope       leading         n
    ==========  ==============  ===========
    layer       ``()``          K
    channel     ``(C,)``        K
    kernel      ``(O,)``        K
    full        ``()``          ``C/G · K``
    ==========  ==============  ===========
    """
    _check.known_name("similarity_blocks", "scope", scope, SCOPES)
    if weight.dim() < 3:
        raise ShapeError(
            f"effective_weight: expected weight of shape (O, C/G, *taps), got "
            f"{_check.shape(weight)}. A matrix has no taps: reshape (O, I) to (O, I/K, K)."
        )
    O, C, *taps = weight.shape
    if groups < 1 or O % groups:
        raise ShapeError(
            f"effective_weight: expected groups to divide the {O} kernels, got {groups}."
        )
    K = prod(taps)
    if scope == "channel":
        return (C * groups,), K
    if scope == "kernel":
        return (O,), K
    return (), (C * K if scope == "full" else K)


def _beside_weight(diagonal: Tensor, weight: Tensor, scope: Scope, groups: int) -> Tensor:
    """A diagonal in a shape that broadcasts to the weight."""
    O, C, *taps = weight.shape
    if scope == "layer":
        return diagonal.reshape(taps)
    if scope == "kernel":
        return diagonal.reshape(O, 1, *taps)
    if scope == "full" or groups == 1:
        return diagonal.reshape(1, C, *taps)
    per_group = diagonal.reshape(groups, 1, C, *taps)
    return per_group.expand(-1, O // groups, *(-1 for _ in (C, *taps))).reshape(weight.shape)


def _in_format_of(weight: Tensor, result: Tensor) -> Tensor:
    """Keep channels_last kernels channels_last, so that the convolution stays on its fast path."""
    if weight.is_contiguous():
        return result
    for axes, memory_format in ((4, torch.channels_last), (5, torch.channels_last_3d)):
        if weight.dim() == axes and weight.is_contiguous(memory_format=memory_format):
            return result.contiguous(memory_format=memory_format)
    return result
