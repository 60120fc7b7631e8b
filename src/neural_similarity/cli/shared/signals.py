"""Clean up when a command is asked to stop."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer

from .printing import print_error

__all__ = ["ends_on_sigterm", "says_on_interrupt"]

INTERRUPTED = 130  # the exit code that shells use for Ctrl-C


@contextmanager
def says_on_interrupt(message: str) -> Iterator[None]:
    """On Ctrl-C, print a line on standard error and exit."""
    try:
        yield
    except KeyboardInterrupt:
        print_error(message)
        raise typer.Exit(INTERRUPTED) from None


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
