"""What every network of the study costs: parameters, multiply-adds, time of a training step.

Run ``python -m experiments.costs`` on a machine that does little else: it writes
``experiments/results/<study>/costs-<number>.json``. Code becomes faster: the newest file counts,
and ``--again`` adds one. Times are of one thread, in seconds of its processor.
All networks take turns, several rounds long, so that a slow moment slows all of them alike.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
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
from .tables.equal_cost import STUDIES

__all__ = ["costs_file", "main", "measure", "read_costs"]

AXES = ("parameters", "multiply_adds", "seconds")
_CLASSES = {"cifar10": 10, "cifar100": 100, "cifar-fs": 64}
_SIDE = 32


def costs_file(results: Path, study: str, number: int) -> Path:
    return results / study / f"costs-{number}.json"


def read_costs(results: Path, study: str) -> dict[str, dict[str, float]]:
    """Parameters, multiply-adds and seconds by row; empty if they were not measured."""
    newest = read_record(costs_file(results, study, _next_number(results, study) - 1))
    return {} if newest is None else newest["rows"]


def _next_number(results: Path, study: str) -> int:
    number = 1
    while costs_file(results, study, number).exists():
        number += 1
    return number


def measure(study: Table, rounds: int, log: Callable[[str], None]) -> dict[str, Any]:
    """Costs of every row of a study, and the machine they were measured on."""
    rows, steps = {}, {}
    for row in study.rows:
        config = row.training("short")
        classes = _CLASSES[config.data]
        model = build_model(config, classes, 3, _SIDE)
        # Episodes do not use the classifier of the base classes.
        tested = build_model(config, 0, 3, _SIDE) if isinstance(config, FewShotConfig) else model
        images = torch.zeros(2, 3, _SIDE, _SIDE)  # one alone could have its M merged
        rows[row.name] = {
            "parameters": sum(p.numel() for p in tested.parameters()),
            "multiply_adds": sum(multiply_adds(tested, images).values()) // len(images),
        }
        steps[row.name] = training_step(config, model, classes)
    times: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(rounds + 1):  # the first warms up
        for name, step in steps.items():
            start = time.thread_time()
            step()
            if number:
                times[name].append(time.thread_time() - start)
        log(f"{study.name}: round {number} of {rounds}")
    return {
        "rounds": rounds,
        "commit": commit(),
        "environment": {k: v for k, v in here_and_now(World()).items() if k != "classes"},
        "rows": {name: {**rows[name], "seconds": median(times[name])} for name in rows},
    }


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


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.costs",
        description=(__doc__ or "").partition("\n")[0],
    )
    parser.add_argument("studies", nargs="*", default=list(STUDIES), help="all by default")
    parser.add_argument("--rounds", type=int, default=9, help="steps of each network (default 9)")
    parser.add_argument("--again", action="store_true", help="also what was measured before")
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()  # as nsl train
    for name in arguments.studies:
        number = _next_number(arguments.results, name)
        if number == 1 or arguments.again:
            file = costs_file(arguments.results, name, number)
            write_record(file, measure(STUDIES[name], arguments.rounds, lambda line: print(line)))


if __name__ == "__main__":
    main()
