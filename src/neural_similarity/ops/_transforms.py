"""When to use PyTorch's operators instead of our own."""

from __future__ import annotations

import torch

__all__ = ["transformed"]


def transformed() -> bool:
    """Whether ``torch.func`` or forward-mode differentiation is active.

    Operators and autograd functions written in Python have no forward derivative and no rule for
    ``torch.func``; the standard operations have both.
    """
    if torch.compiler.is_compiling():  # tracing uses functorch too, but supports the operator
        return False
    functorch = torch._C._functorch.peek_interpreter_stack() is not None
    return functorch or torch.autograd.forward_ad._current_level >= 0
