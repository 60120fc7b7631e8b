"""Import one module from a folder that is not on the path.

Everything else is looked up as before. So a folder can provide the module that the user named, but
cannot slip in another one, such as its own ``matplotlib.py``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

__all__ = ["named_module_here", "one_module"]


@contextmanager
def one_module(folder: Path, name: str, *, first: bool = False) -> Iterator[None]:
    """Let ``import name`` find a module or package in ``folder``, until the end of the block.

    Args:
        folder: where it may be.
        name: the one name that is looked up there.
        first: whether it takes precedence over a module of that name on the path.
    """
    finder = _OneModule(folder, name)
    sys.meta_path.insert(0 if first else len(sys.meta_path), finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


@contextmanager
def named_module_here(spec: str | None) -> Iterator[None]:
    """Let the ``module`` of a backbone ``module:function`` be in the current folder.

    An installed module of that name comes first. Other backbones import nothing from there.
    """
    module, _, function = (spec or "").partition(":")
    if not function or module == "timm":
        yield
        return
    with one_module(Path.cwd(), module.partition(".")[0]):
        yield


class _OneModule(MetaPathFinder):
    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = str(folder), name

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self.name or path is not None:
            return None
        return PathFinder.find_spec(fullname, [self.folder])
