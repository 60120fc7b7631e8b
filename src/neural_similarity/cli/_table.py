"""Tables on the terminal."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table

__all__ = ["print_table"]

_PIPE_WIDTH = 140  # a file or a pipe has no width; a table must not be cut or wrapped for it


def print_table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table on standard output; numbers stand to the right."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for place, name in enumerate(head):
        table.add_column(name, justify="left" if place == 0 else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(f"{v:,}" if isinstance(v, int) else str(v) for v in row))
    console = Console(file=sys.stdout)
    if not console.is_terminal:
        console = Console(file=sys.stdout, width=_PIPE_WIDTH)
    console.print(table)
