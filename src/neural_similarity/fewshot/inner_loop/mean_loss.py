"""A mean of losses, each differentiated as it comes, so that one at a time is in memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

__all__ = ["mean_one_by_one"]


def mean_one_by_one(losses: Iterable[Tensor], parameters: Sequence[Tensor]) -> Tensor:
    """The mean of losses, whose gradient is known before the next loss is made.

    The same as ``torch.stack(list(losses)).mean()``, but that what a loss was computed from is
    forgotten at once. It can be differentiated once.

    Args:
        losses: made one after the other, as by a generator.
        parameters: all that they depend on and that needs a gradient.
    """
    if not torch.is_grad_enabled():
        return torch.stack(list(losses)).mean()
    values: list[Tensor] = []
    sums: list[Tensor] = []
    for loss in losses:
        slopes = torch.autograd.grad(loss, parameters, materialize_grads=True)
        sums = [a + b for a, b in zip(sums, slopes, strict=True)] if sums else list(slopes)
        values.append(loss.detach())
    gradients = [slope / len(values) for slope in sums]
    mean: Tensor = _Known.apply(torch.stack(values).mean(), gradients, *parameters)  # type: ignore[no-untyped-call]
    return mean


class _Known(torch.autograd.Function):
    """A number whose gradient is known already."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, gradients: list[Tensor], *parameters: Tensor) -> Tensor:
        ctx.gradients = gradients
        return value.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, *(slope * gradient for gradient in ctx.gradients)
