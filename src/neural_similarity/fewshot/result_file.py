"""The result of a test on disk: written whole at the end, and line by line while it runs.

::

    results/5way-1shot-600-0.json            a finished test, with everything that decided it
    results/5way-1shot-600-0.partial.jsonl   a test under way: accuracies as they come
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .._io import settle
from ..data import Episodes
from ..errors import RunError
from ..train.checkpoint import write_atomically
from ..train.distributed import World
from ..train.folders import read_json
from ..train.metrics import MetricsFile
from ..train.runs import here_and_now
from .evaluate import Evaluator, Result

__all__ = ["ResultFile"]


@dataclass(frozen=True)
class ResultFile:
    """The result of a test, finished or under way.

    Attributes:
        path: the file.
        about: all that decides the result.
    """

    path: Path
    about: dict[str, Any]

    def read(self) -> dict[str, Any] | None:
        """The result, if the file exists; raises if weights or data have changed since."""
        if not self.path.is_file():
            return None
        result: dict[str, Any] = read_json(self.path, dict)
        if any(result.get(name) != self.about[name] for name in ("weights_step", "data_copy")):
            raise RunError(
                f"{self.path}: expected a result for these weights and data, got one for different "
                f"ones. The run was trained further, or the data changed. Test again with --force."
            )
        return result

    def write(
        self,
        evaluator: Evaluator,
        episodes: Episodes,
        world: World,
        force: bool,
        callback: Callable[[str, int, int], None] | None,
    ) -> dict[str, Any]:
        """Run the test, going on where it stopped, and write the result."""
        partial = self._partial()
        lines = [] if force else MetricsFile.read(partial, frozenset())
        lines = _in_a_row(lines[1:]) if lines and lines[0] == self.about else []
        done = [accuracy for line in lines for accuracy in line["accuracies"]]
        world.wait()  # until all have read
        if world.first:
            self.path.parent.mkdir(exist_ok=True)
            text = "".join(json.dumps(line) + "\n" for line in (self.about, *lines))
            write_atomically(partial, text.encode())

        count = len(done)

        def keep(accuracies: list[float], seconds: float) -> None:
            nonlocal count
            if world.first:
                line = {"first": count, "accuracies": accuracies, "seconds": seconds}
                with partial.open("a") as file:
                    file.write(json.dumps(line) + "\n")
            count += len(accuracies)

        def on_progress(done: int, total: int) -> None:
            if callback is not None:
                callback(self.path.stem, done, total)

        environment = here_and_now(world)  # of the start: code may change while a test runs
        seconds = sum(line["seconds"] for line in lines)
        result = evaluator.run(episodes, done, keep, on_progress, seconds)
        record = _record(result, {**self.about, "environment": environment})
        if world.first:
            write_atomically(self.path, (json.dumps(record, indent=1) + "\n").encode())
            partial.unlink(missing_ok=True)  # another process may have ended the same test
        return record

    def tidy(self) -> None:
        """Remove what a process left that was killed after it wrote the result."""
        with suppress(OSError):  # of a folder that cannot be written
            settle(self.path.parent)
            self._partial().unlink()

    def _partial(self) -> Path:
        return self.path.with_suffix(".partial.jsonl")


def _in_a_row(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The lines that continue each other: two processes may have run the same test."""
    row: list[dict[str, Any]] = []
    count = 0
    for line in lines:
        if line.get("first") == count and isinstance(line.get("accuracies"), list):
            row.append(line)
            count += len(line["accuracies"])
    return row


def _record(result: Result, about: dict[str, Any]) -> dict[str, Any]:
    """A result with everything that decided it; the accuracies, being many, come last."""
    settings = {key: about["config"][key] for key in ("model", "base", "augment", "seed")}
    summary = result.to_dict()
    accuracies = list(summary.pop("accuracies"))
    return {**summary, **settings, **about, "accuracies": accuracies}
