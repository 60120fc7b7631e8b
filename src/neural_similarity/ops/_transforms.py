"""When to leave operators of our own for PyTorch's."""

from __future__ import annotations

import torch

__all__ = ["transformed"]


def transformed() -> bool:
    """Whether ``torch.func`` or forward-mode differentiation is at work.

    Operators and autograd functions written in Python have no forward derivative and no rule for
    ``torch.func``; the standard operations have both.
    """
    if torch.compiler.is_compiling():  # tracing uses the same machinery, and knows the operator
        return False
    functorch = torch._C._functorch.peek_interpreter_stack() is not None
    return functorch or torch.autograd.forward_ad._current_level >= 0
