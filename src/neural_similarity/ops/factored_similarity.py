"""The similarity convolution whose M is a factor per channel times a factor per tap.

Written out, such an M is K times as large as the map of its factors, and so is its gradient. Here
neither is stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from .._shapes import output_size
from .second_order import differentiable_gradients
from .similarity_conv import dispatch, runs_compiled, similarity_conv2d
from .similarity_conv.compiled import Kernels
from .spread_factors import spread_factors

__all__ = ["ConvSettings", "can_factor", "factored_conv2d", "written_out_conv2d"]


class ConvSettings(NamedTuple):
    """Stride, padding, dilation and groups of the convolution."""

    stride: Sequence[int]
    padding: Sequence[int]
    dilation: Sequence[int]
    groups: int


def written_out_conv2d(
    input: Tensor, weight: Tensor, factors: Tensor, settings: ConvSettings
) -> Tensor:
    r"""The definition: M as a tensor with an entry for each channel and tap.

    .. math:: y_{n,o,l} = \sum_c \sum_i W_{o,c,i} \, b_{n,i,l} \, a_{n,c,l} \, X_{n,c,i,l}

    with sample n, kernel o, position l, channel c, tap i and patch X. ``factors`` are the b and
    then the a, ``(N, K + C, P, Q)``, or the a alone, ``(N, C, P, Q)``, where b is 1.
    """
    C, taps = input.shape[1], weight.shape[2] * weight.shape[3]
    over = "channels" if factors.shape[1] == C else "both"
    M = spread_factors(factors, over, taps)
    return similarity_conv2d(input, weight, M, **settings._asdict(), similarity_groups=C)


def can_factor(input: Tensor, weight: Tensor, factors: Tensor, settings: ConvSettings) -> bool:
    """Whether :func:`factored_conv2d` can take these operands right now."""
    operands = (input, weight, factors)
    if any((t.dtype, t.device) != (input.dtype, input.device) for t in operands):
        return False
    if input.numel() == 0 or input.dtype not in (torch.float32, torch.float64):
        return False
    N, C, *size = input.shape
    positions = tuple(map(output_size, size, weight.shape[2:], *settings[:3]))
    counts = (C, C + weight.shape[2] * weight.shape[3])
    if factors.shape[1] not in counts or (factors.shape[0], *factors.shape[2:]) != (N, *positions):
        return False
    return settings.groups < C and min(positions) > 0 and runs_compiled(*operands)


def factored_conv2d(
    input: Tensor, weight: Tensor, factors: Tensor, settings: ConvSettings
) -> Tensor:
    """:func:`written_out_conv2d` without M in memory.

    Only where :func:`can_factor` is true. Second derivatives are those of the definition.
    """
    return cast(Tensor, _Factored.apply(input, weight, factors, settings))  # type: ignore[no-untyped-call]


class _Factored(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, input: Tensor, weight: Tensor, factors: Tensor, settings: ConvSettings
    ) -> Tensor:
        ctx.settings = settings
        ctx.kernels = cast(Kernels, dispatch.choose(input))
        ctx.save_for_backward(input, weight, factors)
        return cast(Tensor, ctx.kernels.factored_forward(input, weight, factors, *settings))

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        operands, needed = ctx.saved_tensors, ctx.needs_input_grad[:3]
        if torch.is_grad_enabled():  # this gradient will be differentiated
            single = partial(written_out_conv2d, settings=ctx.settings)
            return (*differentiable_gradients(single, operands, needed, grad_output), None)
        result = ctx.kernels.factored_backward(grad_output, *operands, *ctx.settings, list(needed))
        return (*(g if n else None for g, n in zip(result, needed, strict=True)), None)
