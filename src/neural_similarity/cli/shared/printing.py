"""Print on the terminal; the only place that does.

Names of files and classes, and text from other people's files, may hold characters that a terminal
takes for commands: they could clear the screen, or change what a line says. So every line passes
through :func:`printable`.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from typing import Any

__all__ = [
    "log_to_stderr", "others_print_to_stderr", "print_error", "print_json", "print_line",
    "print_usage", "printable",
]  # fmt: skip

# Control characters, line separators, marks that change the writing direction, and lone surrogates,
# which stand for the bytes of a file name that is not UTF-8.
_CONTROL = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def printable(text: object) -> str:
    r"""Any text as one line that a terminal shows without interpreting it.

    >>> print(printable("a\x1b[2Jb\nc"))
    a\x1b[2Jb\nc
    >>> print(printable("é, 鳥"))
    é, 鳥
    """
    return _CONTROL.sub(lambda match: _escaped(match[0]), str(text))


def print_line(text: object = "") -> None:
    """Print a line on standard output, at once."""
    print(printable(text), flush=True)


def print_error(text: object) -> None:
    """Print a line on standard error."""
    print(f"nsl: {printable(text)}", file=sys.stderr)


def print_usage(text: str) -> None:
    """Print a text of several lines on standard error."""
    for line in text.rstrip("\n").split("\n"):
        print(printable(line), file=sys.stderr)


def print_json(value: Any) -> None:
    """Print a value as one line of JSON, with non-ASCII characters unescaped."""
    line = json.dumps(value, ensure_ascii=False)
    print(_CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", line), flush=True)


@contextmanager
def others_print_to_stderr() -> Iterator[None]:
    """Redirect what other people's code prints within the block to standard error.

    So standard output holds only what the command prints. This covers ``print``, and also child
    processes, which bypass Python.
    """
    sys.stdout.flush()
    with suppress(OSError):
        sys.stderr.flush()
    output = os.dup(1)
    try:
        os.dup2(2, 1)
        with redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(output, 1)
        os.close(output)


def log_to_stderr() -> None:
    """Print the library's log messages on standard error."""
    logger = logging.getLogger("neural_similarity")
    if not any(isinstance(handler, _Handler) for handler in logger.handlers):
        logger.addHandler(_Handler(logging.WARNING))


class _Handler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        print(printable(self.format(record)), file=sys.stderr)


def _escaped(character: str) -> str:
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:  # a byte of a file name that is not UTF-8
        return f"\\x{code - 0xDC00:02x}"
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")
