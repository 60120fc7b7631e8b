"""The ``nsl`` command: one thin file per subcommand, and one way to report bad input.

A subcommand imports what is slow to import (torch, matplotlib) inside its function, so
``nsl --help`` answers at once.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

from .._allocator import keep_freed_memory

__all__ = ["main"]

BAD_INPUT = 2
_OPTION_OF = {"load_dataset": "--data", "dataset_info": "--data", "create_model": "--model"}
"""Functions that refuse a name, and the option with which the user gave it."""


def main() -> NoReturn:
    """Run ``nsl``; report bad input in one line with exit code 2, never with a traceback."""
    # Idle OpenMP threads spin by default. With other programs on the same processor, that made a
    # step ten times slower; sleeping threads cost almost nothing. Must be set before torch loads.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # Python child processes must not import from the current folder either.
    os.environ.setdefault("PYTHONSAFEPATH", "1")
    keep_freed_memory()
    _check_streams()
    with _one_line_errors():
        try:
            from .app import app
        except ModuleNotFoundError as error:
            _end(
                f"expected the package {error.name}, got none. Install it with: pip install "
                f"'neural-similarity[cli]'."
            )
        from .shared.printing import log_to_stderr

        log_to_stderr()
        code = app(standalone_mode=False)
        sys.stdout.flush()
    sys.exit(code if isinstance(code, int) else 0)


def _check_streams() -> None:
    """End if standard output is closed, before a newly opened file takes its place."""
    is_closed = sys.stdout is None
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # /dev/null gets the lowest free number: its own
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))
    if is_closed:
        _end("expected an open standard output, got a closed one. Redirect it to /dev/null.")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # print "?" for a character it cannot encode
            stream.reconfigure(errors="replace")


@contextmanager
def _one_line_errors() -> Iterator[None]:
    """Report errors from the user, the disk and the system in one line."""
    try:
        yield
    except BrokenPipeError:
        _drop_output()
        sys.exit(1)
    except Exception as error:
        from ..errors import NeuralSimilarityError

        if isinstance(error, NeuralSimilarityError):
            _end(_in_words_of_the_command(str(error)))
        if isinstance(error, OSError):
            if error.filename is None:
                _drop_output()  # perhaps standard output itself
            _end(f"{error.filename or 'disk'}: {error.strerror or error}")
        if isinstance(error, MemoryError) or _is_out_of_memory(error):
            _end(
                "expected a task that fits in memory, got one that does not. Use a smaller batch, "
                "smaller images or a smaller network."
            )
        if hasattr(error, "show") and hasattr(error, "exit_code"):  # a usage error
            _end_usage(error)
        raise


def _is_out_of_memory(error: Exception) -> bool:
    """PyTorch has no class for this error on the CPU."""
    words = ("can't allocate memory", "out of memory", "Storage size calculation overflowed")
    return isinstance(error, RuntimeError) and any(word in str(error) for word in words)


def _drop_output() -> None:
    """Discard what is left to print: Python would complain again when it closes stdout."""
    with suppress(OSError, io.UnsupportedOperation):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _in_words_of_the_command(message: str) -> str:
    """A message that begins with the user's option instead of our function."""
    where, colon, rest = message.partition(": expected name ")
    option = _OPTION_OF.get(where)
    if colon and any(word.partition("=")[0] == option for word in sys.argv[1:]):
        return f"{option}: expected one of {rest.removeprefix('to be one of ')}"
    return message


def _end(message: str) -> NoReturn:
    from .shared.printing import print_error

    print_error(" ".join(message.split()))
    sys.exit(BAD_INPUT)


def _end_usage(error: Any) -> NoReturn:
    """Print the usage of a command, and what was wrong."""
    from .shared.printing import print_usage

    text = io.StringIO()
    error.show(text)
    print_usage(text.getvalue())
    sys.exit(error.exit_code)
