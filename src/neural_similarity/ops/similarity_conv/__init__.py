"""The similarity convolution: one function, whichever path computes it (``dispatch.py``)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor

from ... import _check
from ..._autocast import is_autocast_enabled
from ..._shapes import pair, same_padding
from ...errors import ShapeError
from ..effective_weight import effective_weight
from ..modes import unobserved
from . import compiled, dispatch, operator

__all__ = ["runs_compiled", "similarity_conv2d"]


def similarity_conv2d(
    input: Tensor,
    weight: Tensor,
    similarity: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] | str = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    similarity_groups: int = 1,
) -> Tensor:
    r"""A two-dimensional convolution :math:`W^\top M X` with similarity M between kernel and patch.

    .. math:: y_{n,o,l} = b_o
        + \sum_c \sum_i \sum_j W_{o,c,i} \, M_{n,s(c),i,j,l} \, X_{n,c,j,l}

    with sample n, kernel o, output position l = (p, q), input channel c of the kernel's group,
    similarity group s(c) of that channel, kernel tap i, patch tap j, and X the patches of
    ``input`` (Equation 2; the paper's :math:`M_s` is ``similarity``, and it has one group).

    Args:
        input: ``(N, C, H, W)`` or ``(C, H, W)``.
        weight: ``(O, C/G, kh, kw)``.
        similarity: one of

            * ``(K,)`` static diagonal,
            * ``(K, K)`` static matrix,
            * ``(N, S·K, P, Q)`` a diagonal per output position, for each of S groups of channels,
            * ``(N, K, K, P, Q)`` a matrix per output position, kernel taps first;

            a batch, P or Q of 1 is used for every sample, row or column. So ``(N, K, 1, 1)`` is
            one diagonal per image. It is not expanded; its gradient is summed as it is computed.
        bias, stride, padding, dilation, groups: as in :func:`torch.nn.functional.conv2d`, with
            ``padding`` also ``"same"`` or ``"valid"``.
        similarity_groups: S, how many groups of neighbouring channels have their own diagonal; it
            divides C. The entries of a group are adjacent: ``similarity[:, s·K + k]``.

    Returns:
        ``(N, O, P, Q)``, or ``(O, P, Q)`` for an unbatched input.

    Cost in multiply-adds per output position: ``K·C/G·O`` as in a plain convolution, plus ``K·C``
    for a diagonal or ``K²·C`` for a matrix per position; a static similarity adds no cost that
    depends on the size of the image.

    Example:
        >>> import torch
        >>> input, weight = torch.randn(2, 3, 8, 8), torch.randn(5, 3, 3, 3)
        >>> similarity = torch.rand(2, 9, 8, 8)              # a diagonal at every position
        >>> similarity_conv2d(input, weight, similarity, padding=1).shape
        torch.Size([2, 5, 8, 8])
    """
    if input.dim() == 3:
        with_batch = similarity_conv2d(
            *(input[None], weight, similarity, bias, stride, padding, dilation),
            *(groups, similarity_groups),
        )
        return with_batch[0]
    stride, dilation = pair(stride), pair(dilation)
    if isinstance(padding, str):
        input, padding = _resolve_padding(input, weight, stride, padding, dilation)
    padding = pair(padding)
    positions = _check.conv_output_shape(
        "similarity_conv2d", input, weight, bias, stride, padding, dilation, groups
    )
    taps = weight.shape[2] * weight.shape[3]
    _check.similarity_groups("similarity_conv2d", similarity_groups, input.shape[1])
    _check.similarity_shape(
        *("similarity_conv2d", similarity, input.shape[0], taps, positions),
        groups=similarity_groups,
    )

    if not is_autocast_enabled(input.device):
        _check.conv_operands("similarity_conv2d", input, weight, similarity)
    if bias is not None:
        bias = bias.to(input.dtype)
    if (static := _static(similarity)) is not None and similarity_groups == 1:
        plain = effective_weight(weight, static)
        return F.conv2d(input, plain, bias, stride, padding, dilation, groups)
    similarity, similarity_groups = _nested(similarity, similarity_groups, groups)
    output = operator.similarity_conv2d(
        input, weight, similarity, stride, padding, dilation, groups, similarity_groups
    )
    return output if bias is None else output + bias.to(output.dtype)[:, None, None]


def runs_compiled(*operands: Tensor) -> bool:
    """Whether :func:`similarity_conv2d` of these would run in the compiled kernels right now."""
    return unobserved(*operands) and isinstance(dispatch.choose(operands[0]), compiled.Kernels)


def _static(similarity: Tensor) -> Tensor | None:
    """The similarity without its sample and position axes, if one serves them all."""
    if similarity.dim() <= 2:
        return similarity
    if similarity.shape[0] == 1 and similarity.shape[-2:] == (1, 1):
        return similarity[0, ..., 0, 0]
    return None


def _nested(similarity: Tensor, similarity_groups: int, groups: int) -> tuple[Tensor, int]:
    """The same similarity in groups that nest with those of the convolution, as kernels expect."""
    if similarity_groups % groups == 0 or groups % similarity_groups == 0:
        return similarity, similarity_groups
    finer = math.lcm(similarity_groups, groups)
    split = similarity.unflatten(1, (similarity_groups, -1))
    return split.repeat_interleave(finer // similarity_groups, 1).flatten(1, 2), finer


def _resolve_padding(
    input: Tensor,
    weight: Tensor,
    stride: tuple[int, int],
    padding: str,
    dilation: tuple[int, int],
) -> tuple[Tensor, tuple[int, int]]:
    """Padding by name as a pair of sizes; uneven padding is added to the input here."""
    _check.known_name("similarity_conv2d", "padding", padding, ("same", "valid"))
    if padding == "valid" or weight.dim() != 4:
        return input, (0, 0)
    if stride != (1, 1):
        raise ShapeError(
            f"similarity_conv2d: expected stride 1 with padding='same', got {stride}. With another "
            f"stride the output is smaller than the input. Give padding as numbers."
        )
    (top, bottom), (left, right) = (
        same_padding(k, d) for k, d in zip(weight.shape[2:], dilation, strict=True)
    )
    if (top, left) == (bottom, right):
        return input, (top, left)
    return F.pad(input, (left, right, top, bottom)), (0, 0)
