"""The paper's predictor as one operation: two layers with BatchNorm, the first on directions.

For training, with batch statistics. It passes over the maps three times in each direction, where
separate operations take a dozen passes, and saves two maps for the backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from .._shapes import output_size
from .second_order import differentiable_gradients
from .similarity_conv import dispatch, runs_compiled
from .similarity_conv.compiled import Kernels
from .sphere import sphere_conv2d

__all__ = ["BatchStatistics", "NormalizedLayer", "can_fuse", "fused_predictor", "unfused_predictor"]


class NormalizedLayer(NamedTuple):
    """A convolution without bias, and the parameters of the BatchNorm after it."""

    weight: Tensor
    gain: Tensor
    bias: Tensor
    eps: float


class BatchStatistics(NamedTuple):
    """Mean and biased variance of every channel, over this number of values."""

    mean: Tensor
    variance: Tensor
    values: int


Window = tuple[Sequence[int], Sequence[int], Sequence[int]]
"""Stride, padding and dilation of the first layer."""


def unfused_predictor(
    input: Tensor, first: NormalizedLayer, last: NormalizedLayer, window: Window
) -> Tensor:
    r"""The definition, as separate operations.

    .. math:: u_{n,h,l} = \frac{\langle W_h, X_{n,l} \rangle}{\|X_{n,l}\|}, \qquad
        y = \mathrm{BN}(V * \mathrm{relu}(\mathrm{BN}(u)))

    with sample n, hidden unit h, position l, patch X, the weights W of the first and V of the last
    layer. BatchNorm uses batch statistics.
    """
    stride, padding, dilation = ((int(a), int(b)) for a, b in window)
    u = sphere_conv2d(input, first.weight, None, stride, padding, dilation, normalize="input")
    hidden = _batch_norm(u, first).relu()
    keep_size = (last.weight.shape[2] // 2, last.weight.shape[3] // 2)
    return _batch_norm(F.conv2d(hidden, last.weight, padding=keep_size), last)


def can_fuse(input: Tensor, first: NormalizedLayer, last: NormalizedLayer, window: Window) -> bool:
    """Whether :func:`fused_predictor` can take these operands right now.

    Tracers, exporters, ``torch.func``, operation counters and autocast need the separate
    operations, or change them.
    """
    operands = (input, *first[:3], *last[:3])
    if any((t.dtype, t.device) != (input.dtype, input.device) for t in operands):
        return False
    return _fits(input, first.weight, last.weight, window) and runs_compiled(*operands)


def fused_predictor(
    input: Tensor, first: NormalizedLayer, last: NormalizedLayer, window: Window
) -> tuple[Tensor, BatchStatistics, BatchStatistics]:
    """:func:`unfused_predictor` in one operation, and the statistics that both BatchNorms used.

    Only where :func:`can_fuse` is true. Second derivatives are those of the separate operations.
    """
    settings = (first.eps, last.eps, window)
    output, first_rows, last_rows = cast(
        tuple[Tensor, Tensor, Tensor],
        _Fused.apply(input, *first[:3], *last[:3], settings),  # type: ignore[no-untyped-call]
    )
    count = output.shape[0] * output.shape[2] * output.shape[3]
    of_first = BatchStatistics(first_rows[0], first_rows[1], count)
    return output, of_first, BatchStatistics(last_rows[0], last_rows[1], count)


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
        *operands, ctx.settings = arguments
        first_eps, last_eps, window = ctx.settings
        input, w1, gain1, bias1, w2, gain2, bias2 = operands
        ctx.kernels = cast(Kernels, dispatch.choose(input))
        output, *maps, first_rows, last_rows = ctx.kernels.predictor_forward(
            input, w1, gain1, bias1, first_eps, w2, gain2, bias2, last_eps, *window
        )
        ctx.save_for_backward(*operands, *maps, first_rows, last_rows)
        ctx.mark_non_differentiable(first_rows, last_rows)
        ctx.set_materialize_grads(False)
        return output, first_rows, last_rows

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        grad_output = gradients[0]
        if grad_output is None:
            return (None,) * 8
        tensors = ctx.saved_tensors  # once: gradient checkpointing computes them anew
        needed, operands = ctx.needs_input_grad[:7], tensors[:7]
        if torch.is_grad_enabled():  # this gradient will be differentiated
            return (*differentiable_gradients(_single(ctx), operands, needed, grad_output), None)
        first_eps, last_eps, window = ctx.settings
        input, w1, gain1, bias1, w2, gain2, _, *saved = tensors
        result = ctx.kernels.predictor_backward(
            *(grad_output, input, w1, gain1, bias1, first_eps, w2, gain2, last_eps),
            *(*saved, *window, ctx.needs_input_grad[0]),
        )
        return (*(g if n else None for g, n in zip(result, needed, strict=True)), None)


def _single(ctx: Any) -> Callable[..., Tensor]:
    """:func:`unfused_predictor` as a function of the operands."""
    first_eps, last_eps, window = ctx.settings

    def predict(
        input: Tensor, w1: Tensor, gain1: Tensor, bias1: Tensor, w2: Tensor, gain2: Tensor,
        bias2: Tensor,
    ) -> Tensor:  # fmt: skip
        first = NormalizedLayer(w1, gain1, bias1, first_eps)
        last = NormalizedLayer(w2, gain2, bias2, last_eps)
        return unfused_predictor(input, first, last, window)

    return predict


def _fits(input: Tensor, first: Tensor, last: Tensor, window: Window) -> bool:
    """Whether there is something to compute, and shapes fit; other code explains why not."""
    if input.dim() != 4 or first.dim() != 4 or last.dim() != 4 or input.numel() == 0:
        return False
    if input.shape[1] != first.shape[1] or last.shape[1] != first.shape[0]:
        return False
    P, Q = map(output_size, input.shape[2:], first.shape[2:], *window)
    odd = all(size % 2 == 1 for size in last.shape[2:])
    return odd and min(P, Q) > 0 and input.shape[0] * P * Q > 1


def _batch_norm(input: Tensor, layer: NormalizedLayer) -> Tensor:
    return F.batch_norm(input, None, None, layer.gain, layer.bias, training=True, eps=layer.eps)
