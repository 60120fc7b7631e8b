"""Full precision where autocast would round."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

__all__ = ["is_autocast_enabled", "without_autocast"]


def is_autocast_enabled(device: torch.device) -> bool:
    """Whether autocast is on for a device (the meta device has none)."""
    has_autocast = torch.amp.is_autocast_available(device.type)
    return has_autocast and torch.is_autocast_enabled(device.type)


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Switch autocast off on devices that have it (the meta device has none)."""
    if torch.amp.is_autocast_available(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()
