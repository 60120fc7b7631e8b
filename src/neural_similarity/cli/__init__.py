"""The command ``nsl``: one thin file per command, and one way to report bad input.

A command imports what is slow to import (torch, matplotlib) inside its function, so that
``nsl --help`` answers at once.
"""

from __future__ import annotations

import io
import os
import sys
from typing import NoReturn

__all__ = ["main"]

BAD_INPUT = 2


def main() -> NoReturn:
    """Run ``nsl``; report bad input in one line with exit code 2, never with a traceback."""
    # Idle OpenMP threads spin by default. Where other programs share the processor, that made a
    # step ten times slower; sleeping threads cost almost nothing. Must be set before torch loads.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # Python processes that a command starts do not import from the current folder either.
    os.environ.setdefault("PYTHONSAFEPATH", "1")
    try:
        from .app import app
    except ModuleNotFoundError as error:
        _end(f"the command needs {error.name}: pip install 'neural-similarity[cli]'")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # print "?" for a character it cannot encode
            stream.reconfigure(errors="replace")
    try:
        app()
    except BrokenPipeError:
        # The reader of our output has gone; Python would complain again when it closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:
        from ..errors import NeuralSimilarityError

        if isinstance(error, NeuralSimilarityError):
            _end(str(error))
        if isinstance(error, OSError):
            _end(f"{error.filename or 'disk'}: {error.strerror or error}")
        raise
    sys.exit(0)


def _end(message: str) -> NoReturn:
    print("nsl: " + " ".join(message.split()), file=sys.stderr)
    sys.exit(BAD_INPUT)
