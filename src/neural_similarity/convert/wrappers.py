"""Models inside the wrappers of PyTorch, and parameters that processes share."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, cast

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ..errors import AttachError
from ..nn.layouts import is_fsdp

__all__ = ["is_sharded", "refuse_late_parameters", "reshard", "unwrapped", "whole"]


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


def reshard(model: nn.Module) -> None:
    """Let ``fully_shard`` divide all parameters again.

    After a forward pass some may be whole for a while, and what is written to them is lost.
    """
    for module in model.modules():
        if is_fsdp(type(module)):
            cast(Any, module).reshard()


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
    wrapped_modules = {
        inner
        for module in model.modules()
        if isinstance(module, DistributedDataParallel)
        for inner in module.modules()
    }
    if any(layer in wrapped_modules for layer in layers):
        raise AttachError(
            f"{where}: expected a model before DistributedDataParallel, got one after it. The "
            f"gradients of new parameters would differ between processes. Add similarities first, "
            f"then wrap the model. If it is not trained, pass its .module."
        )
    if any(is_sharded(p) for layer in layers for p in layer.parameters()):
        raise AttachError(
            f"{where}: expected a model before fully_shard, got one with sharded parameters. The "
            f"gradients of new parameters would differ between processes. Add similarities first, "
            f"then shard the model."
        )
