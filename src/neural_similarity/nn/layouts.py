"""How stock layers store their kernels, and the one form that a similarity needs.

A similarity needs kernels as ``(O, C/G, *taps)``. Convolutions store them like this. Transposed
convolutions store input channels first. A matrix ``(O, I)`` has no taps: its input features are
split into blocks, and each block acts as a patch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from ..errors import AttachError
from ..structures import Block

__all__ = [
    "CONVOLUTIONS",
    "KernelLayout",
    "can_attach",
    "features_in_block",
    "kernel_layouts",
    "stock_parameter",
    "stock_type",
]

_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, *_TRANSPOSED)
_RECURRENT = (nn.RNNBase, nn.RNNCellBase)
_CELL_WEIGHTS = ("weight_ih", "weight_hh")


@dataclass(frozen=True)
class KernelLayout:
    """Where the kernels of one weight tensor are."""

    stored: tuple[int, ...]
    kernels: int
    channels: int
    taps: tuple[int, ...]
    groups: int = 1
    transposed: bool = False

    def block(self, full: bool) -> Block:
        """The block of taps that one similarity spans."""
        return Block(self.taps, self.channels if full else 1)

    def to_kernels(self, weight: Tensor) -> Tensor:
        """The stored weight as ``(O, C/G, *taps)``."""
        if self.transposed:
            weight = weight.reshape(self.groups, self.channels, -1, *self.taps).transpose(1, 2)
        return weight.reshape(self.kernels, self.channels, *self.taps)

    def to_stored(self, kernels: Tensor) -> Tensor:
        """The inverse of :meth:`to_kernels`."""
        if self.transposed:
            kernels = kernels.reshape(self.groups, -1, self.channels, *self.taps).transpose(1, 2)
        return kernels.reshape(self.stored)


def can_attach(module: nn.Module) -> bool:
    """Whether a similarity fits this kind of layer."""
    return isinstance(module, (*CONVOLUTIONS, nn.Linear, *_RECURRENT))


def kernel_layouts(
    module: nn.Module, block_size: int | None, where: str
) -> Iterator[tuple[str, KernelLayout]]:
    """The weight tensors of a layer, by name, and how each stores its kernels."""
    if isinstance(module, CONVOLUTIONS):
        C, O, G = module.in_channels // module.groups, module.out_channels, module.groups
        transposed = isinstance(module, _TRANSPOSED)
        stored = (module.in_channels, O // G) if transposed else (O, C)
        taps = module.kernel_size
        yield "weight", KernelLayout((*stored, *taps), O, C, taps, G, transposed)
    elif isinstance(module, nn.Linear):
        yield "weight", _matrix(module.out_features, module.in_features, block_size, where)
    elif isinstance(module, _RECURRENT):
        names = module._flat_weights_names if isinstance(module, nn.RNNBase) else _CELL_WEIGHTS
        for name in names:
            if name.startswith("weight_"):
                rows, columns = _stored_matrix(module, name, where).shape
                yield name, _matrix(rows, columns, block_size, f"{where}.{name}")


def stock_parameter(module: nn.Module) -> Tensor:
    """A parameter of the layer itself, or of what parametrizes one of them."""
    own = next(module.parameters(recurse=False), None)
    return own if own is not None else next(module.get_submodule("parametrizations").parameters())


def stock_type(module: nn.Module) -> type[nn.Module]:
    """The class that a layer has without a similarity, such as ``nn.Conv2d``."""
    cls = type(module)
    if is_fsdp(cls):
        cls = cls.__bases__[1]
    plain: type[nn.Module] = cls.__bases__[0] if hasattr(module, "parametrizations") else cls
    return getattr(plain, "stock_class", plain)


def is_fsdp(cls: type[nn.Module]) -> bool:
    """Whether ``fully_shard`` made this class from another."""
    return cls.__bases__[0].__name__ == "FSDPModule"  # its import is slow


def features_in_block(features: int, block_size: int | None, where: str) -> int:
    """How many input features of a matrix one similarity spans; it must divide them all."""
    if not features:
        raise AttachError(
            f"{where}: expected a layer with input features, got none. The shape of a lazy layer "
            f"is not known yet: call the model once first."
        )
    size = features if block_size is None else block_size
    if size < 1 or features % size:
        raise AttachError(
            f"{where}: expected block_size to divide the {features} input features, got {size}. "
            f"Each block of features is one patch. Choose a divisor, or None for all of them."
        )
    return size


def _matrix(rows: int, columns: int, block_size: int | None, where: str) -> KernelLayout:
    size = features_in_block(columns, block_size, where)
    return KernelLayout((rows, columns), rows, columns // size, (size,))


def _stored_matrix(module: nn.Module, name: str, where: str) -> Tensor:
    """A weight of a recurrent layer, or what a parametrization computes it from."""
    lists: Any = getattr(module, "parametrizations", {})
    weight = getattr(lists[name], "original", None) if name in lists else None
    weight = module._parameters.get(name, weight)
    if weight is None:
        raise AttachError(
            f"{where}: expected {name} to be a plain parameter, got one that pruning, weight norm "
            f"or another parametrization replaces. Make that permanent or remove it first, or name "
            f"the layer in exclude_modules."
        )
    return weight
