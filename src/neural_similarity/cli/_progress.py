"""Progress bars for people, silence for files."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

__all__ = ["TrainingBar", "progress_bar"]


@contextmanager
def progress_bar(*columns: Any) -> Iterator[Progress]:
    """A bar on standard error, which is hidden unless that is a terminal."""
    console = Console(file=sys.stderr)
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        *columns,
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    )
    with bar:
        yield bar


class TrainingBar:
    """Shows how training goes: a bar with rate, loss and the last evaluation."""

    def __init__(self, bar: Progress, name: str) -> None:
        self.bar, self.name = bar, name
        self.task = bar.add_task(name, total=None, rate="", loss="", error="")
        self.error = ""

    def __call__(self, line: dict[str, Any]) -> None:
        """Take a line of metrics."""
        if line["kind"] == "step":
            self.bar.update(
                self.task,
                completed=line["step"],
                total=line["total"],
                loss=f"loss {line['loss']:.3f}",
            )
        elif line["kind"] == "train":
            self.bar.update(self.task, rate=f"{line['images_per_second']:,.0f} images/s")
        elif line["kind"] == "eval":
            self.bar.update(self.task, error=f"error {line['error']:.1%}")

    @staticmethod
    def columns() -> list[TextColumn]:
        """What a bar needs to show it."""
        return [TextColumn(f"{{task.fields[{name}]}}") for name in ("rate", "loss", "error")]
