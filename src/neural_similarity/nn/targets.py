"""Checks of the settings that select where a similarity goes."""

from __future__ import annotations

import re

from .. import _check
from ..errors import AttachError

__all__ = ["check_pattern", "check_targets"]


def check_targets(where: str, target: object, exclude: object, block_size: object) -> None:
    """Raise unless the settings have the documented types."""
    if target is not None:
        check_pattern(where, "target_modules", target)
    check_pattern(where, "exclude_modules", exclude)
    if block_size is not None and not _check.is_whole(block_size):
        raise AttachError(
            f"{where}: expected block_size to be a whole number or None, got {block_size!r}."
        )


def check_pattern(where: str, what: str, pattern: object) -> None:
    """Raise unless ``pattern`` is a regular expression or a list of names."""
    if isinstance(pattern, str):
        try:
            re.compile(pattern)
        except re.error as error:
            raise AttachError(
                f"{where}: expected {what} to be a regular expression that matches whole names, "
                f"got {pattern!r} ({error}). To match the ends of names, pass a list: "
                f"[{pattern!r}]."
            ) from error
    elif not isinstance(pattern, (list, tuple)) or not all(isinstance(p, str) for p in pattern):
        raise AttachError(
            f"{where}: expected {what} to be a regular expression or a list of names, got "
            f"{pattern!r}."
        )
