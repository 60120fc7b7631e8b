"""Whether the code is being exported, traced or transformed, or simply runs."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ._transforms import transformed

__all__ = ["exported", "immediate", "unobserved"]

_PLAIN = {Tensor, nn.Parameter}


def exported() -> bool:
    """Whether the ONNX exporter is tracing the code."""
    # PyTorch's own check takes a few microseconds, and layers run it in every call.
    followed = torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None
    return followed and torch.onnx.is_in_onnx_export()


def immediate(*tensors: Tensor) -> bool:
    """Whether only the values of the result matter: no gradient is needed."""
    return not torch.is_grad_enabled() and unobserved(*tensors)


def unobserved(*tensors: Tensor) -> bool:
    """Whether nothing but perhaps autograd traces, transforms or intercepts the code.

    The tensors must also be plain ones, used in their own dtype.
    """
    if torch.compiler.is_compiling():
        return False
    watched = torch._C._len_torch_dispatch_stack() or torch._C._len_torch_function_stack()
    if watched or torch._C._get_tracing_state() is not None or transformed():
        return False
    if tensors[0].is_meta or torch.is_autocast_enabled(tensors[0].device.type):
        return False
    if any(map(torch._C._functorch.is_legacy_batchedtensor, tensors)):
        return False  # of autograd, with is_grads_batched
    return _PLAIN.issuperset(map(type, tensors))
