"""Ctrl-C and SIGTERM during training: finish the step, write a checkpoint, then stop."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["collect_stop_signals"]

_SAME_SIGNAL = 3.0  # seconds


@contextmanager
def collect_stop_signals() -> Iterator[list[int]]:
    """Collect Ctrl-C and SIGTERM in a list, so a step is never interrupted.

    Signals within a few seconds of the first count as one: schedulers signal every process, and
    torchrun passes the signal on. A later signal raises KeyboardInterrupt at once.
    """
    signals: list[int] = []
    handlers = {}
    first = 0.0

    def collect(number: int, frame: Any) -> None:
        nonlocal first
        if signals and time.monotonic() - first > _SAME_SIGNAL:
            raise KeyboardInterrupt
        first = first or time.monotonic()
        signals.append(number)

    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            handlers[number] = signal.signal(number, collect)
    except ValueError:
        pass  # not in the main thread: the caller handles signals
    try:
        yield signals
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
