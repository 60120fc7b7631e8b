"""The dynamic version of a layer: which class it gets, and which layers have none."""

from __future__ import annotations

import types
from typing import Any

from torch import nn
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize

from ...errors import AttachError
from ..layer_hooks import remove_hooks
from ..names import DEFAULT_NAME, child_name
from ..own_forward import OwnForwardError, OwnPadding, find_padding
from .base import DynamicLayer
from .layers import DynamicConv1d, DynamicConv2d, DynamicLinear, DynamicLSTMCell

__all__ = ["can_be_stock", "dynamic_class", "make_dynamic", "make_stock"]

_DYNAMIC: dict[type[nn.Module], type[DynamicLayer]] = {
    cls.stock_class: cls for cls in (DynamicConv2d, DynamicConv1d, DynamicLinear, DynamicLSTMCell)
}
_VERSIONS: dict[type[nn.Module], type[DynamicLayer]] = {}
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d)  # whose subclasses have a dynamic version too


def dynamic_class(module: nn.Module, where: str, name: str = DEFAULT_NAME) -> type[DynamicLayer]:
    """The class that makes a layer dynamic; changes nothing.

    Raises:
        AttachError: the layer has no dynamic version, or uses one of the names that a similarity
            called ``name`` needs.
    """
    if isinstance(module, DynamicLayer):
        _refuse_used_names(module, _of_similarity(module, type(module), name), where)
        return type(module)
    _refuse_hooked_forward(module, where)
    cls = _DYNAMIC.get(type(module)) or _subclass_version(module, where)
    ours = {*dir(DynamicLayer), *DynamicLayer.__annotations__} - set(dir(nn.Module))
    _refuse_used_names(module, ours | _of_similarity(module, cls, name), where)
    return cls


def make_dynamic(module: nn.Module) -> DynamicLayer:
    """Give a layer its dynamic class, in place; its parameters do not change."""
    if isinstance(module, DynamicLayer):
        return module
    cls, padding = dynamic_class(module, "model"), None
    if cls not in _DYNAMIC.values():
        padding = _own_padding(module, "model")
    module.__class__ = cls
    assert isinstance(module, DynamicLayer)
    if padding is not None:
        module.own_padding = padding
    return module


def can_be_stock(module: DynamicLayer) -> bool:
    """Whether the class of a layer is the dynamic version of another one, and not a subclass."""
    return "stock_class" in vars(type(module))


def make_stock(module: DynamicLayer) -> None:
    """Give a layer without similarities its stock class back, in place."""
    for name in ("installed", "active", "own_padding"):
        vars(module).pop(name, None)
    remove_hooks(module)
    module.__class__ = module.stock_class  # type: ignore[assignment]  # no longer a dynamic one


def _subclass_version(module: nn.Module, where: str) -> type[DynamicLayer]:
    if not isinstance(module, _CONVOLUTIONS) or parametrize.is_parametrized(module):
        raise _no_version(module, where)
    if any(is_lazy(parameter) for parameter in module.parameters(recurse=False)):
        raise _no_version(
            module, where, ", whose shape is not known yet. Call the model once first"
        )
    _own_padding(module, where)
    return _version_of(type(module))


def _own_padding(module: nn.Module, where: str) -> OwnPadding | None:
    """The padding of a subclass, where its settings do not define it."""
    assert isinstance(module, _CONVOLUTIONS)
    stock: Any = _stock_class(type(module))
    cls: Any = type(module)
    if (cls.forward, cls._conv_forward) == (stock.forward, stock._conv_forward):
        return None
    try:
        return find_padding(module)
    except OwnForwardError as error:
        raise _no_version(
            module,
            where,
            f", whose forward {error}. A subclass of a convolution has one if its forward only "
            f"pads the input with zeros and convolves",
        ) from error


def _version_of(cls: type[nn.Module]) -> type[DynamicLayer]:
    """The dynamic version of a subclass of a convolution: a subclass of both.

    Without an active similarity its ``forward`` is that of the subclass, and all other methods of
    the subclass stay.
    """
    if cls in _VERSIONS:
        return _VERSIONS[cls]
    bases = (_DYNAMIC[_stock_class(cls)], cls)
    body = {"stock_class": cls, "__module__": __name__, "__reduce_ex__": _reduce}
    name = f"Dynamic{cls.__name__}"
    version = types.new_class(name, bases, exec_body=lambda namespace: namespace.update(body))
    return _VERSIONS.setdefault(cls, version)  # another thread may have made one


def _reduce(self: DynamicLayer, protocol: Any) -> tuple[Any, ...]:
    """For pickle and copy, which look classes up by their names."""
    parts: Any = object.__reduce_ex__(self, protocol)
    return (_blank, (self.stock_class,), *parts[2:])


def _blank(cls: type[nn.Module]) -> DynamicLayer:
    version = _version_of(cls)
    return version.__new__(version)


def _stock_class(cls: type[nn.Module]) -> type[nn.Module]:
    return next(stock for stock in _CONVOLUTIONS if issubclass(cls, stock))


def _refuse_hooked_forward(module: nn.Module, where: str) -> None:
    """Raise if changing the layer's class would have no effect."""
    if "forward" in vars(module):
        raise AttachError(
            f"{where}: expected a layer whose forward is that of its class, got a "
            f"{type(module).__name__} with its own forward in the instance. Libraries that hook "
            f"into layers set one, and it would bypass the dynamic similarity. Remove the hook, "
            f"attach, then hook again; or name the layer in exclude_modules."
        )


def _of_similarity(module: nn.Module, cls: type[DynamicLayer], name: str) -> set[str]:
    """The names of the predictors of a new similarity in a layer."""
    return {child_name(site, name) for site in cls.sites(module, None)}  # type: ignore[arg-type]


def _refuse_used_names(module: nn.Module, ours: set[str], where: str) -> None:
    """Raise if the layer uses a name of dynamic layers for something else."""
    if names := sorted(name for name in ours if hasattr(module, name)):
        raise AttachError(
            f"{where}: expected a layer without attributes named {', '.join(names)}, got a "
            f"{type(module).__name__} that has them. Dynamic layers use these names. Rename them, "
            f"or name the layer in exclude_modules."
        )


def _no_version(module: nn.Module, where: str, why: str = "") -> AttachError:
    choices = ", ".join(stock.__name__ for stock in _DYNAMIC)
    return AttachError(
        f"{where}: expected a layer that has a dynamic version ({choices}), got "
        f"{type(module).__name__}{why}. To skip this layer, name it in exclude_modules."
    )
