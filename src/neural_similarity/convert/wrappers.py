"""Models inside the wrappers of PyTorch."""

from __future__ import annotations

from torch import nn

__all__ = ["unwrapped"]


def unwrapped(model: nn.Module) -> nn.Module:
    """The model without ``torch.compile``, ``DataParallel`` or DDP around it.

    A wrapper puts a prefix before the names of all layers.
    """
    while True:
        if isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
            model = model.module
        elif isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):
            model = inner
        else:
            return model
