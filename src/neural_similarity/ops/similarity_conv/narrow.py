"""bfloat16 and float16 on a CPU: the compiled operation in float32, rounded at the end.

Processors without instructions for these dtypes convert values one by one in every product. Here
each operand is converted once. Sums are as accurate as in float32.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import compiled
from .pieces import format_of, gradient_memory

__all__ = ["DTYPES", "backward", "forward"]

DTYPES = (torch.bfloat16, torch.float16)


def forward(input: Tensor, weight: Tensor, similarity: Tensor, *settings: Any) -> Tensor:
    operands = (input.float(), weight.float(), similarity.float())
    output: Tensor = _kernels().forward(*operands, *settings)
    return output.to(input.dtype, memory_format=format_of(input))


def backward(
    grad_output: Tensor, input: Tensor, weight: Tensor, similarity: Tensor, *rest: Any
) -> tuple[Tensor, Tensor, Tensor]:
    tensors = (grad_output.float(), input.float(), weight.float(), similarity.float())
    gx, gw, gm = _kernels().backward(*tensors, *rest)
    *_, mask = rest
    # Conversion makes expanded operands dense, so layouts are taken from the original operands.
    if mask[0]:
        gx = gx.to(input.dtype, memory_format=format_of(input))
    if mask[2]:
        gm = gradient_memory(similarity).copy_(gm)
    return gx.to(input.dtype), gw.to(input.dtype), gm.to(input.dtype)


def _kernels() -> compiled.Kernels:
    kernels = compiled.load()
    assert kernels is not None  # dispatch.py has checked
    return kernels
