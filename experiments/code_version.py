"""Which version of the code runs, for result files."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

import neural_similarity

__all__ = ["commit"]


@cache
def commit() -> str:
    """The commit of the code, marked ``-dirty`` if files were changed; as of the first call.

    It is ``"unknown"`` where the library is not the one in this clone.
    """
    if not Path(neural_similarity.__file__).is_relative_to(Path(__file__).parents[1]):
        return "unknown"
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    process = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parent)
    return process.stdout.strip() or "unknown"
