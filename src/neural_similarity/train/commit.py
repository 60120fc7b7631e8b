"""The version of the running code, stored in run folders and in result files."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

__all__ = ["UNKNOWN", "code_version"]

UNKNOWN = "unknown"
_ROOT = Path(__file__).resolve().parents[3]


@cache
def code_version() -> str:
    """The commit of this library, marked ``-dirty`` if files were changed; as of the first call.

    Call it when work begins: a process keeps the code that it has loaded, whatever is committed
    meanwhile. It is ``"unknown"`` if the library does not run from a clone.
    """
    if not (_ROOT / ".git").exists():
        return UNKNOWN
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        process = subprocess.run(command, capture_output=True, text=True, cwd=_ROOT)
    except OSError:  # git is not installed
        return UNKNOWN
    return process.stdout.strip() or UNKNOWN
