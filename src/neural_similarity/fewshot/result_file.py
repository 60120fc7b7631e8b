"""The result of a test on disk: written atomically at the end, and line by line while it runs.

::

    results/5way-1shot-600-0.json            a finished test, with everything that affects it
    results/5way-1shot-600-0.partial.jsonl   a test in progress: accuracies so far
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .._io import settle
from .._json import Count, MaybeInfinite, Share, build, read_json, read_json_lines
from ..data import Episodes
from ..errors import RunError
from ..train.checkpoint import write_atomically
from ..train.distributed import World
from ..train.metrics import ADVICE
from ..train.runs.environment import here_and_now
from .evaluate import Evaluator, Result, episodes_per_second

__all__ = ["ResultFile", "read_result"]


@dataclass(frozen=True)
class _Stored:
    """What the file of a finished test must contain."""

    method: str
    method_options: dict[str, Any]
    n_way: Count
    n_shot: Count
    n_query: Count
    mean: Share
    interval: MaybeInfinite
    inference: str
    episodes: Count
    adapted: Count
    batch_norm: str
    episode_seed: Count
    fingerprint: str
    data: str
    data_copy: str
    seconds: float
    weights: str
    weights_step: Count
    accuracies: list[Share]


@dataclass(frozen=True)
class _Part:
    """A line of a test in progress."""

    first: Count
    accuracies: list[Share]
    seconds: float


@dataclass(frozen=True)
class ResultFile:
    """The result of a test, finished or in progress.

    Attributes:
        path: the file.
        about: everything that affects the result.
    """

    path: Path
    about: dict[str, Any]

    def read(self) -> dict[str, Any] | None:
        """The result, if the file exists; raises if weights or data have changed since."""
        if not self.path.is_file():
            return None
        result = read_result(self.path)
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
        """Run the test, continuing where it stopped, and write the result."""
        partial = self._partial()
        # Another process may be testing too: all of this world must begin with the same lines.
        lines = [] if force else world.from_first(lambda: _accuracies_so_far(partial, self.about))
        earlier_accuracies = [accuracy for line in lines for accuracy in line["accuracies"]]
        if world.first:
            self.path.parent.mkdir(exist_ok=True)
            text = "".join(json.dumps(line) + "\n" for line in (self.about, *lines))
            write_atomically(partial, text.encode(), "test again")

        count = len(earlier_accuracies)

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

        environment = here_and_now(world)  # at the start: code may change while a test runs
        seconds = sum(line["seconds"] for line in lines)
        result = evaluator.run(episodes, earlier_accuracies, keep, on_progress, seconds)
        record = _record(result, {**self.about, "environment": environment})
        if world.first:
            content = (json.dumps(record, indent=1) + "\n").encode()
            write_atomically(self.path, content, "test again")
            partial.unlink(missing_ok=True)  # another process may have finished the same test
        return record

    def tidy(self) -> None:
        """Remove what was left by a process that was killed after it wrote the result."""
        with suppress(OSError):  # the folder may be read-only
            settle(self.path.parent)
            self._partial().unlink()

    def _partial(self) -> Path:
        return self.path.with_suffix(".partial.jsonl")


def read_result(path: Path) -> dict[str, Any]:
    """The result of a finished test."""
    advice = "Delete the file, or test again with --force."
    result = read_json(path, dict[str, Any], RunError, advice)
    build(_Stored, result, path, RunError, advice, others=True)
    rate = episodes_per_second(result["episodes"], result["seconds"])
    return {**result, "episodes_per_second": rate}  # which older files do not have


def _accuracies_so_far(partial: Path, about: dict[str, Any]) -> list[dict[str, Any]]:
    """The consecutive lines of a test in progress; none if it is another test.

    Two processes may have run the same test and mixed their lines.
    """
    lines = read_json_lines(partial, RunError, ADVICE) if partial.is_file() else []
    if not lines or lines[0] != about:
        return []
    row: list[dict[str, Any]] = []
    count = 0
    for number, line in enumerate(lines[1:], 2):
        part = build(_Part, line, f"{partial}, line {number}", RunError, ADVICE)
        if part.first == count:
            row.append(line)
            count += len(part.accuracies)
    return row


def _record(result: Result, about: dict[str, Any]) -> dict[str, Any]:
    """A result with everything that affects it; the accuracies, being many, come last."""
    settings = {key: about["config"][key] for key in ("model", "base", "augment", "seed")}
    summary = result.to_dict()
    accuracies = list(summary.pop("accuracies"))
    return {**summary, **settings, **about, "accuracies": accuracies}
