"""A function that stores only its arguments, and is recomputed in the backward pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

__all__ = ["recomputed"]

Function = Callable[[Sequence[Tensor], bool], Sequence[Tensor]]


def recomputed(function: Function, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """``function(tensors, False)``; its gradient is that of ``function(tensors, True)``.

    PyTorch's own checkpointing cannot be used around a function that takes gradients itself.

    Args:
        function: takes tensors, and whether its result must be differentiable. Only its arguments
            get a gradient, so nothing else in it may need one.
        tensors: its arguments.
    """
    results: tuple[Tensor, ...] = _Recomputed.apply(function, *tensors)  # type: ignore[no-untyped-call]
    return results


class _Recomputed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, function: Function, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.function = function
        ctx.save_for_backward(*tensors)
        with torch.enable_grad():
            results = function(_leaves(tensors), False)
        return tuple(result.detach() for result in results)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        leaves = _leaves(ctx.saved_tensors)
        with torch.enable_grad():
            results = ctx.function(leaves, True)
        return None, *torch.autograd.grad(results, leaves, slopes, materialize_grads=True)


def _leaves(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [tensor.detach().requires_grad_() for tensor in tensors]
