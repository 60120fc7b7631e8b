"""Optional packages that only some data sets need."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ..errors import DataError

__all__ = ["needs"]


@contextmanager
def needs(package: str, what: str) -> Iterator[None]:
    """Around an import: the error names the missing package, what needs it and how to get it."""
    try:
        yield
    except ImportError as error:
        raise DataError(
            f"{what}: expected the package {package}, got none ({error}). "
            f"Install it with pip install 'neural-similarity[cli]'."
        ) from error
