"""Which layers a configuration selects: by suffix list, regular expression or ``"all-conv"``."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

from torch import nn

from ..errors import AttachError
from ..nn.inventory import predictor_modules
from ..nn.layouts import CONVOLUTIONS, can_attach

__all__ = ["matches", "select"]

ALL_CONV = "all-conv"


def select(
    model: nn.Module, target: str | Sequence[str], exclude: str | Sequence[str]
) -> dict[str, nn.Module]:
    """The selected layers, by name, in the model's order; raises if there are none."""
    if not isinstance(target, str):
        _every_suffix_means_something(model, target)
    names: dict[nn.Module, list[str]] = {}  # one module may have several names
    inside = predictor_modules(model)
    for name, module in model.named_modules(remove_duplicate=False):
        if module not in inside:
            names.setdefault(module, []).append(name)
    _every_exclusion_means_something(names, exclude)
    layers = {
        own_names[0]: module
        for module, own_names in names.items()
        if any(_is_target(name, module, target) for name in own_names)
        and not any(matches(name, exclude) for name in own_names)
    }
    if not layers:
        kinds = sorted({type(m).__name__ for _, m in model.named_modules() if can_attach(m)})
        raise AttachError(
            f"attach: expected at least one layer for target_modules={target!r} and "
            f"exclude_modules={exclude!r}, got none. Layers here that can have a similarity: "
            f"{', '.join(kinds) or 'none'}. Name some in target_modules, by suffix or with a "
            f"regular expression that matches whole names."
        )
    return layers


def matches(name: str, pattern: str | Sequence[str]) -> bool:
    """Whether a regular expression matches the whole name, or it ends with a suffix of a list."""
    if isinstance(pattern, str):
        return re.fullmatch(pattern, name) is not None
    return any(name == suffix or name.endswith("." + suffix) for suffix in pattern)


def _is_target(name: str, module: nn.Module, target: str | Sequence[str]) -> bool:
    if target == ALL_CONV:
        return isinstance(module, CONVOLUTIONS)
    return can_attach(module) and matches(name, target)


def _every_suffix_means_something(model: nn.Module, target: Sequence[str]) -> None:
    modules = dict(model.named_modules(remove_duplicate=False))
    for suffix in target:
        names = [name for name in modules if matches(name, [suffix])]
        if any(can_attach(modules[name]) for name in names):
            continue
        if names:
            raise _of_container("target_modules", suffix, names[0], modules[names[0]])
        near = difflib.get_close_matches(suffix, modules, n=1, cutoff=0.4)
        hint = f" The nearest is {near[0]!r}." if near else ""
        raise AttachError(
            f"attach: expected target_modules to name layers of the model, got {suffix!r}. No "
            f"layer's name ends in it.{hint}"
        )


def _every_exclusion_means_something(
    names: dict[nn.Module, list[str]], exclude: str | Sequence[str]
) -> None:
    for suffix in () if isinstance(exclude, str) else exclude:
        excluded = {
            name: module
            for module, own_names in names.items()
            for name in own_names
            if matches(name, [suffix])
        }
        if not excluded:
            raise AttachError(
                f"attach: expected exclude_modules to name modules of the model, got {suffix!r}. "
                f"No name ends in it."
            )
        if any(map(can_attach, excluded.values())):
            continue
        for name, module in excluded.items():
            if any(map(can_attach, module.modules())):
                raise _of_container("exclude_modules", suffix, name, module)


def _of_container(option: str, suffix: str, name: str, module: nn.Module) -> AttachError:
    return AttachError(
        f"attach: expected {option} to name layers with a kernel, got {suffix!r}, which is a "
        f"{type(module).__name__}. Name the layers inside it, for example with the regular "
        f"expression '{re.escape(name)}\\..*'."
    )
