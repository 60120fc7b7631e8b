"""The operation before and after the second step in speed, side by side.

Each version has a process of its own. They take turns, so that noise affects both alike.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from .operands import DIRECTIONS, KINDS, SHAPES
from .timing import Timing, race

BEFORE = "e1b3a0999af6"  # measured the oldest files in results/
ROOT = Path(__file__).parents[1]


def run(rounds: int) -> dict[str, list[Timing]]:
    tables = {}
    with TemporaryDirectory() as folder:
        check_out(BEFORE, Path(folder))
        with Worker.start(Path(folder)) as before, Worker.start(ROOT) as now:
            contestants = {"before": before.run_once, "now": now.run_once}
            for kind in KINDS:
                for direction in DIRECTIONS:
                    ratios = []
                    for number, shape in enumerate(SHAPES):
                        for worker in (before, now):
                            worker.ask(f"{kind}/{direction}/{number}")
                        timings = race(contestants, rounds, clock=time.perf_counter)
                        tables[f"{kind}, {direction}, {shape}"] = timings
                        ratios.append(timings[1].ratio)
                    tables[f"{kind}, {direction}, geometric mean over the shapes"] = [
                        Timing.of_ratio("now", statistics.geometric_mean(ratios))
                    ]
    return tables


class Worker:
    """A process that runs the operation of one version."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    @classmethod
    @contextmanager
    def start(cls, version: Path) -> Iterator[Worker]:
        """Start a process that imports the library from ``version/src``."""
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.version_worker", str(torch.get_num_threads())],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": str(version / "src")},
        )  # fmt: skip
        with process:
            try:
                yield cls(process)
            finally:
                process.kill()

    def ask(self, request: str) -> None:
        """Send a line, and wait for the answer."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with suppress(BrokenPipeError):  # then there is no answer either
            self.process.stdin.write(f"{request}\n")
            self.process.stdin.flush()
        if not self.process.stdout.readline():
            raise RuntimeError(f"the worker ended with exit code {self.process.wait()}; see above")

    def run_once(self) -> None:
        self.ask("")


def check_out(commit: str, folder: Path) -> None:
    """Write the library of a commit to a folder."""
    command = ["git", "-C", str(ROOT), "archive", commit, "src"]
    process = subprocess.run(command, capture_output=True, check=False)
    if process.returncode != 0:
        raise RuntimeError(f"no commit {commit} here: this needs a clone with its whole history")
    with tarfile.open(fileobj=BytesIO(process.stdout)) as files:
        files.extractall(folder, filter="data")
