"""Hooks that let a layer with a similarity behave like a stock one."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

__all__ = [
    "accept_missing_similarity",
    "accept_stock_keys",
    "assigns",
    "insist_on_calls",
    "make_copyable",
    "own_class",
    "remove_hooks",
]


def accept_stock_keys(module: nn.Module) -> RemovableHandle:
    """Let a layer's ``load_state_dict`` accept a checkpoint from before the attachment.

    The stock key ``weight`` is loaded into the original weight, and the similarity keeps its
    values. On the meta device it has none: then its keys are missing. Code that removes the
    parametrization must remove the returned handle too.
    """
    handle: RemovableHandle = module.register_load_state_dict_pre_hook(_rename_stock_keys)
    return handle


def assigns(local_metadata: dict[str, Any]) -> bool:
    """Whether ``load_state_dict`` puts the tensors themselves into the layer."""
    return bool(local_metadata.get("assign_to_params_buffers", False))


def _like(value: Any, stock: Tensor | None, local_metadata: dict[str, Any]) -> Any:
    """A value that the layer keeps, beside weights of a type that is assigned to it."""
    floating = isinstance(value, Tensor) and value.is_floating_point()
    if stock is None or not floating or not assigns(local_metadata):
        return value
    return value.to(stock.device, stock.dtype if stock.is_floating_point() else None)


def _rename_stock_keys(
    module: nn.Module,
    state_dict: dict[str, Tensor],
    prefix: str,
    local_metadata: dict[str, Any],
    *_: Any,
) -> None:
    if not hasattr(module, "parametrizations"):  # removed with PyTorch's own functions
        return
    parametrizations = module.get_submodule("parametrizations")
    present = parametrizations.state_dict(prefix=f"{prefix}parametrizations.")
    for name, _child in parametrizations.named_children():
        stock = state_dict.pop(prefix + name, None)
        if stock is None:
            continue
        state_dict[f"{prefix}parametrizations.{name}.original"] = stock
        for key, value in present.items():
            if key.startswith(f"{prefix}parametrizations.{name}.") and not _is_meta(value):
                state_dict.setdefault(key, _like(value, stock, local_metadata))


def accept_missing_similarity(module: nn.Module) -> None:
    """Let a layer's ``load_state_dict`` accept a checkpoint without any similarity.

    The similarity keeps its values; on the meta device it has none. A checkpoint with only part of
    one is refused as usual. The layer's method ``similarity_children`` returns the child modules in
    question, by name.
    """
    module.register_load_state_dict_pre_hook(_fill_in_similarity)


def _fill_in_similarity(
    module: Any,
    state_dict: dict[str, Tensor],
    prefix: str,
    local_metadata: dict[str, Any],
    *_: Any,
) -> None:
    stock = state_dict.get(f"{prefix}weight")
    present = {
        f"{prefix}{name}.{key}": _like(value, stock, local_metadata)
        for name, child in module.similarity_children().items()
        for key, value in child.state_dict().items()
        if not _is_meta(value)
    }
    if present.keys().isdisjoint(state_dict):
        state_dict.update(present)


def _is_meta(value: Any) -> bool:
    """Also of what ``get_extra_state`` returns, which need not be a tensor."""
    return isinstance(value, Tensor) and value.is_meta


def insist_on_calls(module: nn.Module) -> None:
    """Keep ``nn.TransformerEncoderLayer`` from using a layer's weight without calling the layer.

    In evaluation mode it passes the weights of its linear layers to a fused kernel, unless one of
    them has a hook. The hook itself does nothing.
    """
    module.register_forward_pre_hook(_nothing)


def _nothing(module: nn.Module, inputs: Any) -> None:
    pass


_OURS = (_fill_in_similarity, _nothing)


def remove_hooks(module: nn.Module) -> None:
    """Remove what :func:`accept_missing_similarity` and :func:`insist_on_calls` registered."""
    for hooks in (module._load_state_dict_pre_hooks, module._forward_pre_hooks):
        # PyTorch wraps some hooks in an object; a copy of a layer has hooks but no handles.
        ours = [k for k, hook in hooks.items() if getattr(hook, "hook", hook) in _OURS]
        for key in ours:
            del hooks[key]


def make_copyable(module: nn.Module) -> None:
    """Let a parametrized recurrent layer be deep-copied.

    Recurrent layers keep a list of the weights they used last. Under a parametrization these are
    computed tensors, which PyTorch refuses to copy. The copy makes its own list.
    """
    if not isinstance(module, nn.RNNBase):
        return
    cls: Any = type(module)  # parametrize made this class only for this layer: safe to extend
    stock_deepcopy = cls.__deepcopy__

    def deepcopy(self: Any, memo: dict[int, Any]) -> Any:
        before = self._flat_weights, self._flat_weight_refs
        self._flat_weights, self._flat_weight_refs = [], []
        try:
            copy = stock_deepcopy(self, memo)
        finally:
            self._flat_weights, self._flat_weight_refs = before
        copy._init_flat_weights()
        return copy

    cls.__deepcopy__ = deepcopy


def own_class(module: nn.Module) -> None:
    """Give a parametrized layer a class that no other layer shares.

    A deep copy shares the class that ``parametrize`` made for the original, and removing a
    parametrization edits that class: without this, merging a copy would break the original.
    """
    shared = type(module)
    body = {k: v for k, v in vars(shared).items() if k not in ("__dict__", "__weakref__")}
    module.__class__ = type(shared.__name__, shared.__bases__, body)
