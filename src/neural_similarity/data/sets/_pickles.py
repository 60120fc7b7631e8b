"""Pickles of arrays and plain containers, and of nothing else.

A pickle is a program: loading an unknown one runs its code. CIFAR's batches contain only arrays,
dictionaries, lists, numbers and strings; everything else is refused before it is created.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import DataError

__all__ = ["read_plain_pickle"]


def read_plain_pickle(path: Path) -> dict[str, Any]:
    """The dictionary in a pickle of arrays and plain containers."""
    try:
        with path.open("rb") as file:
            # Python 2 wrote CIFAR's batches; latin1 is how its strings and arrays are read.
            content = _Plain(file, encoding="latin1").load()
    except Exception as error:  # damaged pickles raise any kind of error
        raise DataError(
            f"{path}: expected a pickle of arrays and plain containers, got one that cannot be "
            f"read: {str(error) or type(error).__name__}. The file is damaged, or it is something "
            f"else. Download it again."
        ) from error
    if not isinstance(content, dict):
        raise DataError(f"{path}: expected a dictionary, got {type(content).__name__}.")
    return content


def _encode(text: str, encoding: str) -> bytes:
    """The use of ``_codecs.encode`` in pickles; other codecs can do more than encode text."""
    if encoding not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError(f"codec {encoding!r} is not allowed")
    return text.encode("latin1")


_ALLOWED: dict[tuple[str, str], Any] = {
    ("_codecs", "encode"): _encode,
    ("numpy", "dtype"): np.dtype,
    ("numpy", "ndarray"): np.ndarray,
    # NumPy 2 renamed its inner module, and a pickle holds the name at the time of writing.
    ("numpy.core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
    ("numpy._core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
}


class _Plain(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"{module}.{name} is not allowed")
        return _ALLOWED[module, name]
