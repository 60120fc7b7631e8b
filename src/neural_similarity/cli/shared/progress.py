"""Progress bars for people, silence for files."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from .printing import printable

__all__ = ["QueueBar", "StageBar", "TrainingBar", "progress_bar"]


@contextmanager
def progress_bar(*columns: Any) -> Iterator[Progress]:
    """A bar on standard error; hidden if that is not a terminal."""
    console = Console(file=sys.stderr)
    bar = Progress(
        TextColumn("{task.description}", markup=False),
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


class StageBar:
    """Shows the stage of a command; a stage without a total has an indeterminate bar."""

    def __init__(self, bar: Progress) -> None:
        self.bar, self.stage = bar, ""
        self.task: TaskID | None = None

    def __call__(self, stage: str, done: int = 0, total: int | None = None) -> None:
        """Show a stage, and how much of it is done."""
        if self.task is None or stage != self.stage:
            if self.task is not None:
                self.bar.remove_task(self.task)
            self.stage, self.task = stage, self.bar.add_task(stage, total=total)
        self.bar.update(self.task, completed=done, total=total)


class TrainingBar:
    """Shows the progress of training: a bar with rate, loss and the last evaluation."""

    def __init__(self, bar: Progress, name: str) -> None:
        self.bar, self.name, self.has_trained = bar, name, False
        self.task = bar.add_task(printable(name), total=None, rate="", loss="", error="")
        self.error = ""

    def __call__(self, line: dict[str, Any]) -> None:
        """Update the bar from a line of metrics."""
        if line["kind"] == "step":
            self.has_trained = True
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
        """The columns that the progress bar must have."""
        return [TextColumn(f"{{task.fields[{name}]}}") for name in ("rate", "loss", "error")]


class QueueBar:
    """Shows what a queue of runs is doing now; the bar of a finished run is removed."""

    def __init__(self, bar: Progress) -> None:
        self.bar, self.name = bar, ""
        self.task: TaskID | None = None

    def training(self, name: str) -> Callable[[dict[str, Any]], None]:
        """Start the bar of a run, in place of the last one."""
        self._remove()
        callback = TrainingBar(self.bar, name)
        self.name, self.task = name, callback.task
        return callback

    def tests(self, name: str, done: int, total: int) -> None:
        """Show how many episodes of a test are done."""
        if name != self.name:
            self._remove()
            self.name = name
            self.task = self.bar.add_task(printable(name), total=total, rate="", loss="", error="")
        if self.task is not None:
            self.bar.update(self.task, completed=done)

    def _remove(self) -> None:
        if self.task is not None:
            self.bar.remove_task(self.task)
            self.task = None
