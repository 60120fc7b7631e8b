"""Models inside the wrappers of PyTorch, and parameters that processes share."""

from __future__ import annotations

from collections.abc import Callable, Collection

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ..errors import AttachError

__all__ = ["is_sharded", "refuse_late_parameters", "unwrapped", "whole"]


def unwrapped(model: nn.Module) -> nn.Module:
    """The model without ``torch.compile``, ``DataParallel`` or DDP around it.

    A wrapper puts a prefix before the names of all layers.
    """
    while True:
        if isinstance(model, (nn.DataParallel, DistributedDataParallel)):
            model = model.module
        elif isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):
            model = inner
        else:
            return model


def is_sharded(tensor: Tensor) -> bool:
    """Whether every process has only a part of the tensor, as after ``fully_shard``."""
    return hasattr(tensor, "full_tensor")  # a DTensor, whose import is slow


def whole(tensor: Tensor) -> Tensor:
    """The tensor itself, or all of a sharded one, which all processes must ask for together."""
    gather: Callable[[], Tensor] | None = getattr(tensor, "full_tensor", None)
    return tensor if gather is None else gather()


def refuse_late_parameters(where: str, model: nn.Module, layers: Collection[nn.Module]) -> None:
    """Raise if new parameters of these layers would be left out when processes share gradients.

    DDP and ``fully_shard`` handle the parameters that a model has when they are called.
    """
    parallel = any(isinstance(module, DistributedDataParallel) for module in model.modules())
    sharded = any(is_sharded(p) for layer in layers for p in layer.parameters())
    if layers and (parallel or sharded):
        name = "DistributedDataParallel" if parallel else "fully_shard"
        raise AttachError(
            f"{where}: expected a model before {name}, got one after it. The gradients of new "
            f"parameters would differ between processes. Add similarities first, then call {name}."
        )
