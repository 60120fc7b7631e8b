"""Which version of the code runs, for result files."""

from __future__ import annotations

from pathlib import Path

import neural_similarity
from neural_similarity.train import code_version

__all__ = ["UNKNOWN", "commit"]

UNKNOWN = "unknown"


def commit() -> str:
    """The commit of the code, marked ``-dirty`` if files were changed; as of the first call.

    It is ``"unknown"`` where the library is not the one in this clone.
    """
    if not Path(neural_similarity.__file__).is_relative_to(Path(__file__).parents[1]):
        return UNKNOWN
    return code_version()
