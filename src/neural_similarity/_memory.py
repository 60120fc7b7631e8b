"""The memory of this machine: refuse what cannot fit before it is allocated.

A size with a few digits too many would otherwise end in an allocation that fails deep inside
PyTorch, or in a process that the system kills.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from .errors import ShapeError

__all__ = ["check_fits", "check_side", "limited_tensors", "total_memory"]

MOST_SIDE = 4096
"""The largest side of an image that networks accept."""

MOST_BYTES = 2**32
"""The largest weight of a network."""

_UNKNOWN = 2**40  # bytes, where the system does not report it
_FACTORIES = (torch.empty, torch.zeros, torch.ones, torch.rand, torch.randn, torch.full)


def total_memory() -> int:
    """The bytes of memory that this machine or container has."""
    try:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):  # not on this system
        total = _UNKNOWN
    try:
        return min(total, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    except (OSError, ValueError):  # no container, or one without a limit
        return total


def check_fits(where: str, what: str, size: int, advice: str) -> None:
    """Raise if ``size`` bytes are more than the memory of this machine."""
    total = total_memory()
    if size > total:
        raise _too_large(where, f"{what} to fit in this machine's memory of", total, size, advice)


def check_side(where: str, side: int) -> None:
    """Raise if images of this side are too large for any network."""
    if side > MOST_SIDE:
        raise ShapeError(f"{where}: expected image_size of at most {MOST_SIDE:,}, got {side:,}.")


@contextmanager
def limited_tensors(where: str, what: str, advice: str) -> Iterator[None]:
    """Raise before the tensors created in the block need more memory than there is.

    A single tensor is limited as well, since memory fills slowly with the values of a large one.
    """
    if torch.get_default_device().type != "cpu":  # on "meta" they take none
        yield
        return
    with _Counter(where, what, advice):
        yield


class _Counter(TorchFunctionMode):
    def __init__(self, where: str, what: str, advice: str) -> None:
        super().__init__()
        self.where, self.what, self.advice, self.total = where, what, advice, 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = kwargs or {}
        if func in _FACTORIES:
            sizes = args if args else (options.get("size", ()),)
            shape = sizes[0] if isinstance(sizes[0], tuple | list) else sizes
            size = 4 * prod(side for side in shape if isinstance(side, int))
            if size > MOST_BYTES:
                what = f"{self.what} to have weights of at most"
                raise _too_large(self.where, what, MOST_BYTES, size, self.advice)
            self.total += size
            check_fits(self.where, self.what, self.total, self.advice)
        return func(*args, **options)


def _too_large(where: str, what: str, limit: int, size: int, advice: str) -> ShapeError:
    got = f"{size / 1e9:,.1f} GB" if size < 1e15 else "far more"
    return ShapeError(f"{where}: expected {what} {limit / 1e9:,.1f} GB, got {got}. {advice}.")
