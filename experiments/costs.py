"""What every network of the study costs: parameters, multiply-adds, time of a training step.

Run ``python -m experiments.costs`` on a machine that does little else: it writes
``experiments/results/<study>/costs-<number>.json``. Code becomes faster: the newest file counts,
and ``--again`` adds one. Times are of one thread, in seconds of its processor. All networks take
turns, several rounds long, so that a slow moment slows all of them alike. Where a process places
things in memory makes a few percent of difference, so several processes measure, in different
orders; the median counts, and the spread of the others, or 3 % if it is less, is the error of
timing.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from fnmatch import fnmatch
from itertools import combinations
from math import exp, log, pi, sqrt
from multiprocessing import get_context
from pathlib import Path
from random import Random
from statistics import fmean, median, stdev, variance
from typing import Any

import torch
import torch.nn.functional as F

from neural_similarity.convert import multiply_adds
from neural_similarity.fewshot import FewShotConfig
from neural_similarity.train import (
    TrainConfig,
    World,
    build_model,
    build_optimizer,
    here_and_now,
    keep_freed_memory,
)

from .code_version import commit
from .records import RESULTS, read_record, write_record
from .tables.base import Table
from .tables.equal_cost import PLAIN, STUDIES

__all__ = [
    "costs_file", "differences", "earlier_measurements", "main", "matching_rows", "measure",
    "measure_here", "read_costs", "typical_seconds",
]  # fmt: skip

AXES = ("parameters", "multiply_adds", "seconds")
TIMING_ERROR = 0.03
"""The least standard deviation of a time per step, as a share of it.

Measurements on different days differ by about as much on machines of one kind, and by more between
kinds (``--differences``); the processes of one measurement differ by less.
"""
_CLASSES = {"cifar10": 10, "cifar100": 100, "cifar-fs": 64}
_SIDE = 32


def costs_file(results: Path, study: str, number: int) -> Path:
    return results / study / f"costs-{number}.json"


def read_costs(results: Path, study: str, number: int | None = None) -> dict[str, dict[str, float]]:
    """Costs by row, and the error of timing as a share; empty if they were not measured.

    ``number`` is that of the file; None means the newest.
    """
    number = _next_number(results, study) - 1 if number is None else number
    record = read_record(costs_file(results, study, number))
    if record is None:
        return {}
    seconds, error = typical_seconds(record.get("seconds_by_process", {}))
    error = max(error, TIMING_ERROR)
    return {
        name: {**costs, "seconds": seconds.get(name, costs["seconds"]), "timing_error": error}
        for name, costs in record["rows"].items()
    }


def earlier_measurements(results: Path, study: str) -> list[int]:
    """The numbers of the files before the newest that name the code they measured."""
    records = {
        number: read_record(costs_file(results, study, number))
        for number in range(1, _next_number(results, study) - 1)
    }
    return [n for n, record in records.items() if record and "commit" in record]


def differences(results: Path, study: str) -> Iterator[tuple[int, int, float]]:
    """By how much two measurements of the plain networks differ: the numbers of both, and a share.

    The share is the standard deviation of one measurement, if both have the same. A machine that is
    slow as a whole does not count. The code of plain networks is PyTorch's own.
    """
    newest = _next_number(results, study) - 1
    costs = {n: read_costs(results, study, n) for n in earlier_measurements(results, study)}
    costs |= {newest: read_costs(results, study)}
    for (first, before), (second, after) in combinations(costs.items(), 2):
        names = [name for name in before.keys() & after.keys() if name.startswith(PLAIN)]
        if len(names) > 2:
            ratios = [log(after[name]["seconds"] / before[name]["seconds"]) for name in names]
            yield first, second, stdev(ratios) / sqrt(2)


def typical_seconds(by_process: Mapping[str, list[float]]) -> tuple[dict[str, float], float]:
    """The time of each row over several processes, and its standard deviation as a share.

    A process may be slow as a whole. This slows all rows alike and does not matter to their
    comparison, so the times of a process are divided by their geometric mean first.
    """
    logs = {name: [log(s) for s in times] for name, times in by_process.items()}
    count = min(map(len, logs.values()), default=0)
    if count < 2:
        return {}, TIMING_ERROR
    speeds = [fmean(times[p] for times in logs.values()) for p in range(count)]
    usual = fmean(speeds)
    level = {n: [t - s for t, s in zip(ts, speeds, strict=True)] for n, ts in logs.items()}
    seconds = {name: exp(usual + median(rest)) for name, rest in level.items()}
    # The median of a few normal numbers varies by π/2 as much as their mean, at most.
    return seconds, sqrt(fmean(map(variance, level.values())) / count * pi / 2)


def _next_number(results: Path, study: str) -> int:
    number = 1
    while costs_file(results, study, number).exists():
        number += 1
    return number


def matching_rows(study: Table, patterns: Sequence[str]) -> list[str]:
    """The rows of a study that match one of some patterns; raises if there are none."""
    names = [row.name for row in study.rows if any(fnmatch(row.name, p) for p in patterns)]
    if not names:
        choices = ", ".join(row.name for row in study.rows)
        raise SystemExit(
            f"costs: expected patterns of rows among {choices}, got {', '.join(patterns)}."
        )
    return names


def measure(study: Table, rounds: int, processes: int, names: Sequence[str]) -> dict[str, Any]:
    """Costs of some rows of a study, and the machine that measured them."""
    costs = []
    for number in range(processes):  # one after the other, each a process of its own
        spawn = get_context("spawn")
        with ProcessPoolExecutor(1, mp_context=spawn, initializer=_as_training) as pool:
            costs.append(pool.submit(measure_here, study.name, rounds, number, names).result())
        print(f"{study.name}: process {number + 1} of {processes}", flush=True)
    seconds = {name: [rows[name]["seconds"] for rows in costs] for name in costs[0]}
    return {
        "rounds": rounds,
        "commit": commit(),
        "environment": {k: v for k, v in here_and_now(World()).items() if k != "classes"},
        "rows": {name: {**costs[0][name], "seconds": median(seconds[name])} for name in seconds},
        "seconds_by_process": seconds,
    }


def _as_training() -> None:
    """Prepare a process as ``nsl train`` does."""
    torch.set_num_threads(1)
    keep_freed_memory()


def measure_here(
    study: str, rounds: int, order: int, names: Sequence[str]
) -> dict[str, dict[str, float]]:
    """Costs by row, measured in this process; ``order`` is the seed of the order of rows."""
    rows, steps = {}, {}
    chosen = [row for row in STUDIES[study].rows if row.name in names]
    for row in Random(order).sample(chosen, len(chosen)):
        config = row.training("short")
        classes = _CLASSES[config.data]
        model = build_model(config, classes, 3, _SIDE)
        # Episodes do not use the classifier of the base classes.
        tested_model = (
            build_model(config, 0, 3, _SIDE) if isinstance(config, FewShotConfig) else model
        )
        images = torch.zeros(2, 3, _SIDE, _SIDE)  # one alone could have its M merged
        rows[row.name] = {
            "parameters": sum(p.numel() for p in tested_model.parameters()),
            "multiply_adds": sum(multiply_adds(tested_model, images).values()) // len(images),
        }
        steps[row.name] = training_step(config, model, classes)
    times: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(rounds + 1):  # the first warms up
        for name, step in steps.items():
            start = time.thread_time()
            step()
            if number:
                times[name].append(time.thread_time() - start)
    return {name: {**rows[name], "seconds": median(times[name])} for name in names}


def training_step(
    config: TrainConfig | FewShotConfig, model: torch.nn.Module, classes: int
) -> Callable[[], None]:
    """A step on random images, as training takes them."""
    model.train().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = build_optimizer(config, model)
    images = torch.randn(config.batch_size, 3, _SIDE, _SIDE)
    images = images.contiguous(memory_format=torch.channels_last)
    labels = torch.randint(classes, (config.batch_size,))

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()

    return step


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.costs",
        description=(__doc__ or "").partition("\n")[0],
    )
    parser.add_argument("studies", nargs="*", default=list(STUDIES), help="all by default")
    parser.add_argument("--rounds", type=int, default=9, help="steps of each network (default 9)")
    parser.add_argument("--processes", type=int, default=5, help="that measure (default 5)")
    parser.add_argument(
        "--rows", nargs="+", default=["*"], metavar="PATTERN",
        help="only these networks, such as 'plain-*'; the others are not compared (default: all)",
    )  # fmt: skip
    parser.add_argument("--again", action="store_true", help="also what was measured before")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument(
        "--differences", action="store_true", help="only compare what was measured before"
    )
    arguments = parser.parse_args(words)
    if arguments.differences:
        for name in arguments.studies:
            for first, second, share in differences(arguments.results, name):
                print(f"{name}: costs-{first}.json and costs-{second}.json differ by {share:.1%}")
        return
    torch.set_num_threads(1)  # as the record says
    rows = {name: matching_rows(STUDIES[name], arguments.rows) for name in arguments.studies}
    for name in arguments.studies:
        number = _next_number(arguments.results, name)
        if number > 1 and not arguments.again:
            print(f"{name}: measured before; --again measures it anew")
            continue
        costs = measure(STUDIES[name], arguments.rounds, arguments.processes, rows[name])
        write_record(costs_file(arguments.results, name, number), costs)


if __name__ == "__main__":
    main()
