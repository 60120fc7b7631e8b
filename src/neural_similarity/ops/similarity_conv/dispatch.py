"""Which code computes the similarity convolution: the list of paths, and who is chosen when.

A path is an object with two functions, ``forward`` and ``backward``, that take what the operators
in ``operator.py`` take. A new path is one entry of :data:`PATHS`. The tests run over this list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import NamedTuple

import torch
from torch import Tensor

from . import compiled, panels

__all__ = ["PATHS", "Kernels", "Path", "choose", "only"]

Kernels = compiled.Kernels | ModuleType
"""What computes: it has ``forward`` and ``backward``."""


class Path(NamedTuple):
    """One way to compute the operation."""

    name: str
    serves: Callable[[Tensor], bool]
    """Whether it takes inputs like this one."""
    load: Callable[[], Kernels | None]
    """Its functions; None where this machine cannot run them."""


def _compiled_serves(input: Tensor) -> bool:
    return input.device.type == "cpu" and input.dtype in (torch.float32, torch.float64)


PATHS: tuple[Path, ...] = (
    Path("compiled", _compiled_serves, compiled.load),
    Path("panels", lambda input: True, lambda: panels),
)
"""The fastest first; the last one serves every input on every machine."""


def choose(input: Tensor) -> Kernels:
    """The first path that serves this input and can run here."""
    for path in PATHS:
        if path.serves(input) and (kernels := path.load()) is not None:
            return kernels
    raise RuntimeError(f"no path serves an input of {input.dtype} on {input.device}")


@contextmanager
def only(name: str) -> Iterator[None]:
    """Within, the path of this name computes everything; for tests and benchmarks."""
    global PATHS
    before = PATHS
    PATHS = tuple(path for path in before if path.name == name)
    try:
        yield
    finally:
        PATHS = before
