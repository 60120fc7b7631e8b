"""Tables on the terminal."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from .printing import printable

__all__ = ["print_table"]


def print_table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table on standard output; all columns but the first are right-aligned."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column, name in enumerate(head):
        table.add_column(name, justify="left" if column == 0 else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(f"{v:,}" if isinstance(v, int) else printable(v)) for v in row))
    console = Console(file=sys.stdout)
    # A narrow terminal wraps long lines; text that is cut off here would be lost.
    wide = console.options.update(max_width=10_000)
    console.width = max(console.width, Measurement.get(console, wide, table).maximum)
    console.print(table)
