"""Full precision where autocast would round."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

__all__ = ["without_autocast"]


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Switch autocast off on devices that have it (the meta device has none)."""
    if torch.amp.is_autocast_available(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()
