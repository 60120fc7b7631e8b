"""Commands that are asked to end clean up behind them."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["ends_on_sigterm"]


@contextmanager
def ends_on_sigterm() -> Iterator[None]:
    """End by SIGTERM as by any exit, so that what was half written goes; by itself it would not."""

    def end(number: int, frame: Any) -> None:
        raise SystemExit(128 + number)  # as shells tell of it

    try:
        before = signal.signal(signal.SIGTERM, end)
    except ValueError:  # not in the main thread: whoever started it handles signals
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
