"""Files that appear whole or not at all."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["whole_file"]


@contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary path beside ``path``, moved there when the block ends well.

    If it does not, what was at ``path`` is as it was, and nothing is left beside it.
    """
    target = Path(path)
    if not target.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "no such folder", str(target.parent))
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".writing-") as folder:
        file = Path(folder) / target.name
        yield file
        file.replace(target)
