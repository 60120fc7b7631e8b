"""A mean of losses, each differentiated immediately, so only one is in memory at a time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

__all__ = ["mean_loss"]


def mean_loss(losses: Iterable[Tensor], parameters: Sequence[Tensor]) -> Tensor:
    """The mean of losses; the gradient of each is computed before the next loss.

    It equals ``torch.stack(list(losses)).mean()``, but the graph of each loss is freed immediately.
    It can be differentiated once.

    Args:
        losses: computed one after the other, as by a generator.
        parameters: all tensors that the losses depend on and that need a gradient.
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
    mean: Tensor = _KnownGradient.apply(torch.stack(values).mean(), gradients, *parameters)  # type: ignore[no-untyped-call]
    return mean


class _KnownGradient(torch.autograd.Function):
    """A value whose gradient is already computed."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, gradients: list[Tensor], *parameters: Tensor) -> Tensor:
        ctx.gradients = gradients
        return value.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, *(slope * gradient for gradient in ctx.gradients)
