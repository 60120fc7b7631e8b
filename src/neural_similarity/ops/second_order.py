"""Second derivatives of a fused operation: those of its separate operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

__all__ = ["differentiable_gradients"]


def differentiable_gradients(
    function: Callable[..., Tensor],
    operands: Sequence[Tensor],
    needed: Sequence[bool],
    grad_output: Tensor,
) -> list[Tensor | None]:
    """The gradients of ``function(*operands)``, as functions of the operands.

    Args:
        function: the same as separate operations.
        operands: its arguments.
        needed: which of them get a gradient; the others get None.
        grad_output: the gradient of its result.
    """
    # Views, so that a weight that depends on the input counts once.
    views = [tensor.view_as(tensor) for tensor in operands]
    leaves = [view for view, need in zip(views, needed, strict=True) if need]
    # PyTorch's BatchNorm takes a gradient of one image with unusual strides for another one.
    given = grad_output.contiguous()
    gradients = iter(torch.autograd.grad(function(*views), leaves, given, create_graph=True))
    return [next(gradients) if need else None for need in needed]
