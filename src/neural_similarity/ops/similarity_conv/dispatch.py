"""Which code computes the similarity convolution: the list of paths, and which is used when.

A path is an object with two functions, ``forward`` and ``backward``, that take the arguments of the
operators in ``operator.py``. To add a path, add an entry to :data:`PATHS`: the tests run over it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import NamedTuple

import torch
from torch import Tensor

from . import compiled, narrow, panels

__all__ = ["PATHS", "Kernels", "Path", "choose", "only"]

Kernels = compiled.Kernels | ModuleType
"""The code of a path: it has ``forward`` and ``backward``."""


class Path(NamedTuple):
    """One way to compute the operation."""

    name: str
    serves: Callable[[Tensor], bool]
    """Whether it supports inputs of this device and dtype."""
    load: Callable[[Tensor], Kernels | None]
    """Return its code for such an input, or None where this machine cannot run it."""


def _compiled_serves(input: Tensor) -> bool:
    dtypes = (torch.float32, torch.float64, *narrow.DTYPES)
    return input.device.type == "cpu" and input.dtype in dtypes


def _load_compiled(input: Tensor) -> Kernels | None:
    kernels = compiled.load()
    return narrow if kernels is not None and input.dtype in narrow.DTYPES else kernels


PATHS: tuple[Path, ...] = (
    Path("compiled", _compiled_serves, _load_compiled),
    Path("panels", lambda input: True, lambda input: panels),
)
"""Fastest first. The last one supports every input on every machine."""


def choose(input: Tensor) -> Kernels:
    """The first path that supports this input and can run here."""
    for path in PATHS:
        if path.serves(input) and (kernels := path.load(input)) is not None:
            return kernels
    raise RuntimeError(
        f"similarity_conv2d: expected an implementation for {input.dtype} on {input.device}, got "
        f"none."
    )


@contextmanager
def only(name: str) -> Iterator[None]:
    """Use the path of this name for every input that it supports; for tests and benchmarks.

    The last path, which supports every input, computes the rest.
    """
    global PATHS
    before = PATHS
    PATHS = tuple(path for path in before if path.name == name or path is before[-1])
    try:
        yield
    finally:
        PATHS = before
