"""Interleaved timing: contestants take turns in one process, so that noise hits them alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

__all__ = ["Timing", "race"]


@dataclass(frozen=True)
class Timing:
    """How long one contestant took, beside the first of the race."""

    name: str
    milliseconds: float
    ratio: float
    ratio_low: float
    ratio_high: float

    def over(self, work: float) -> Timing:
        """The same for ``work`` times as much to do as the first had."""
        ratios = (self.ratio / work, self.ratio_low / work, self.ratio_high / work)
        return Timing(self.name, self.milliseconds, *ratios)

    @classmethod
    def of_ratio(cls, name: str, ratio: float) -> Timing:
        """A ratio made of other ratios."""
        return cls(name, float("nan"), ratio, float("nan"), float("nan"))


def race(contestants: Mapping[str, Callable[[], object]], rounds: int = 15) -> list[Timing]:
    """Run every contestant once a round and compare each round's times with the first's.

    The ratio is the median over rounds; low and high are its quartiles. Two rounds warm up.
    """
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for round_number in range(rounds + 2):
        for name, run in contestants.items():
            start = time.perf_counter()
            run()
            if round_number >= 2:
                times[name].append(time.perf_counter() - start)
    baseline = next(iter(times.values()))
    return [_summary(name, measured, baseline) for name, measured in times.items()]


def _summary(name: str, measured: list[float], baseline: list[float]) -> Timing:
    ratios = [a / b for a, b in zip(measured, baseline, strict=True)]
    low, median, high = statistics.quantiles(ratios, n=4)
    return Timing(name, 1e3 * statistics.median(measured), median, low, high)
