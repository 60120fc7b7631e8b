"""Call a module with other tensors in place of its parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.func import functional_call

__all__ = ["call_with"]


def call_with(module: nn.Module, tensors: Mapping[str, Tensor], *inputs: Any) -> Any:
    """What the module computes with these tensors in place of the parameters of these names.

    Like ``torch.func.functional_call``, which takes each name of a shared module in turn and so
    leaves the temporary tensors in it. Here every place is taken once, and gets its own tensor
    back. Tied weights stay tied.
    """
    places: dict[int, dict[tuple[int, str], str]] = {}  # by tensor: where it is, and a name of that
    named: dict[str, Tensor] = {}
    for path, owner in module.named_modules(remove_duplicate=False):
        for key, tensor in (*owner._parameters.items(), *owner._buffers.items()):
            if tensor is not None:
                name = f"{path}.{key}" if path else key
                named[name] = tensor
                places.setdefault(id(tensor), {}).setdefault((id(owner), key), name)
    once = {
        place: tensor
        for name, tensor in tensors.items()
        for place in places[id(named[name])].values()
    }
    return functional_call(module, once, inputs, tie_weights=False)
