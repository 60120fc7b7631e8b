"""Interleaved timing: contestants take turns in one process, so that noise affects all alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

__all__ = ["Timing", "race"]


@dataclass(frozen=True)
class Timing:
    """The time of a contestant, and its ratio to the first contestant's."""

    name: str
    milliseconds: float
    ratio: float
    ratio_low: float
    ratio_high: float

    def over(self, work: float) -> Timing:
        """Ratios per unit of work, for a contestant with ``work`` times the work of the first."""
        ratios = (self.ratio / work, self.ratio_low / work, self.ratio_high / work)
        return Timing(self.name, self.milliseconds, *ratios)

    @classmethod
    def of_ratio(cls, name: str, ratio: float) -> Timing:
        """A number computed from other timings."""
        return cls(name, float("nan"), ratio, float("nan"), float("nan"))


def race(
    contestants: Mapping[str, Callable[[], object]],
    rounds: int = 15,
    clock: Callable[[], float] | None = None,
) -> list[Timing]:
    """Run every contestant once a round, and divide its time by the first contestant's.

    The ratio is the median over rounds; low and high are its quartiles. The first two rounds are
    not counted. Without a clock, one thread is measured by its seconds on the processor, which
    other work on the machine hardly changes.
    """
    if clock is None:
        clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for round_number in range(rounds + 2):
        for name, run in contestants.items():
            start = clock()
            run()
            if round_number >= 2:
                times[name].append(clock() - start)
    baseline = next(iter(times.values()))
    return [_summary(name, measured, baseline) for name, measured in times.items()]


def _summary(name: str, times: list[float], baseline: list[float]) -> Timing:
    ratios = [a / b for a, b in zip(times, baseline, strict=True)]
    low, median, high = statistics.quantiles(ratios, n=4)
    return Timing(name, 1e3 * statistics.median(times), median, low, high)
