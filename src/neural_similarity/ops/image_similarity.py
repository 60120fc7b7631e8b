"""One M per image, from the average of its pixels, as one node of the graph.

The sizes are tiny, so a training step would spend its time on the overhead of a dozen operations
and their gradients, and on a gradient of the average as large as the input.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from .second_order import differentiable_gradients
from .similarity_conv import dispatch, runs_compiled
from .similarity_conv.compiled import Kernels
from .spread_factors import spread_factors

__all__ = [
    "ImageSettings",
    "can_fuse_image",
    "fused_image_similarity",
    "image_similarity",
]


class ImageSettings(NamedTuple):
    """How M follows from the output z of the two layers.

    Args:
        gate: ``"none"``, ``"tanh"`` or ``"sigmoid"``, which means tanh(z/2).
        residual: whether 1 is added.
        over: ``"taps"``, ``"channels"`` or ``"both"``.
        taps: K.
    """

    gate: str
    residual: bool
    over: str
    taps: int


def image_similarity(
    input: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, settings: ImageSettings
) -> Tensor:
    """M, ``(N, S·K, 1, 1)``, as separate operations: linear, ReLU, linear, gate of the average."""
    z = F.linear(F.linear(input.mean((2, 3)), w1, b1).relu(), w2, b2)
    if settings.gate != "none":
        z = torch.tanh(z if settings.gate == "tanh" else z / 2)
    factors = z + 1 if settings.residual else z
    return spread_factors(factors, settings.over, settings.taps)[:, :, None, None]


def can_fuse_image(*operands: Tensor) -> bool:
    """Whether :func:`fused_image_similarity` can take these operands right now."""
    input = operands[0]
    if any((t.dtype, t.device) != (input.dtype, input.device) for t in operands):
        return False
    if input.dim() != 4 or input.numel() == 0 or input.shape[1] != operands[1].shape[1]:
        return False
    return runs_compiled(*operands)


def fused_image_similarity(
    input: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, settings: ImageSettings
) -> Tensor:
    """:func:`image_similarity` in one operation.

    Only where :func:`can_fuse_image` is true. Second derivatives are those of the separate
    operations.
    """
    return cast(Tensor, _Fused.apply(input, w1, b1, w2, b2, settings))  # type: ignore[no-untyped-call]


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        *operands, ctx.settings = arguments
        ctx.kernels = cast(Kernels, dispatch.choose(operands[0]))
        M, *saved = ctx.kernels.image_predictor_forward(*operands, *ctx.settings)
        ctx.save_for_backward(*operands, *saved)
        return cast(Tensor, M)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        needed = ctx.needs_input_grad[:5]
        if torch.is_grad_enabled():  # this gradient will be differentiated
            single = partial(image_similarity, settings=ctx.settings)
            gradients = differentiable_gradients(single, ctx.saved_tensors[:5], needed, grad_output)
            return (*gradients, None)
        input, w1, _, w2, _, *saved = ctx.saved_tensors
        share, *others = ctx.kernels.image_predictor_backward(
            grad_output, input, w1, w2, *saved, *ctx.settings
        )
        # Not expanded in memory: it is added to the other gradients of the input.
        result = (share[:, :, None, None].expand(input.shape), *others)
        return (*(g if n else None for g, n in zip(result, needed, strict=True)), None)
