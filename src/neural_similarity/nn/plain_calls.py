"""Whether modules may be computed without being called."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.modules import module as module_internals

__all__ = ["called_plainly"]

_INTERNALS: Any = module_internals


def called_plainly(*modules: nn.Module) -> bool:
    """Whether calling these modules does what their class defines, and nothing else.

    A module with hooks must be called, and one that was compiled or whose ``forward`` was replaced
    does something else.
    """
    if _INTERNALS._has_any_global_hook():
        return False
    return not any(_is_changed(module) or _has_hooks(module) for module in modules)


def _is_changed(module: nn.Module) -> bool:
    return "forward" in vars(module) or module._compiled_call_impl is not None


def _has_hooks(module: nn.Module) -> bool:
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
    )
