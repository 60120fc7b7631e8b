"""Clean up when a command is asked to stop."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["ends_on_sigterm"]


@contextmanager
def ends_on_sigterm() -> Iterator[None]:
    """Exit normally on SIGTERM, so that unfinished files are removed; by default they stay."""

    def end(number: int, frame: Any) -> None:
        raise SystemExit(128 + number)  # the exit code that shells use for signals

    try:
        before = signal.signal(signal.SIGTERM, end)
    except ValueError:  # not in the main thread: the caller handles signals
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
