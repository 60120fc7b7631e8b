"""A row in numbers: its mean over seeds, and its difference to another row with an interval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from ..intervals import (
    Estimate,
    over_episodes,
    over_images,
    over_seeds,
    over_seeds_and_episodes,
    paired_over_episodes,
    paired_over_seeds,
)
from ..records import Record
from ..tables.base import Row, Table
from .row_results import RowResults, find_test

__all__ = ["Comparison", "compare", "compare_rows", "on_same_episodes"]

_DRAWN_FROM = ("data_copy", "n_way", "n_shot", "n_query", "episode_seed")


@dataclass(frozen=True)
class Comparison:
    """A row in numbers, compared with another; accuracies and errors in percent.

    Args:
        results: the results of the row.
        ours: mean over the seeds that did not diverge.
        difference: to the other row, over the seeds that both have.
        better: whether the difference is an improvement; None if its interval contains zero.
        adapted: parameters adapted in an episode.
    """

    results: RowResults
    ours: Estimate | None
    difference: Estimate | None = None
    better: bool | None = None
    adapted: int | None = None

    @property
    def row(self) -> Row:
        return self.results.row

    @property
    def parameters(self) -> int | None:
        """Of the network that is tested."""
        return next((self.results.parameters(seed) for seed in self.results.by_seed), None)

    @property
    def minutes(self) -> float | None:
        """Of training, at the fastest pace."""
        curves = [r.get("metrics", {}).get("eval") for r in self.results.finished.values()]
        steps = [curve["step"][-1] for curve in curves if curve]
        pace = self.results.pace
        return None if pace is None or not steps else pace * max(steps) / 60

    @property
    def top5(self) -> float | None:
        """The mean top-5 error after training, in percent."""
        curves = [r.get("metrics", {}).get("eval", {}) for r in self.results.finished.values()]
        errors = [curve["top5_error"][-1] for curve in curves if "top5_error" in curve]
        return 100 * fmean(errors) if errors else None

    @property
    def step_seconds(self) -> float | None:
        """Of a training step."""
        times = [r["step_seconds"] for r in self.results.finished.values()]
        return fmean(times) if times and None not in times else None


def compare_rows(
    table: Table, rows: Mapping[str, RowResults], shots: int | None = None
) -> list[Comparison]:
    """Every row with results, compared with the baseline; ``shots`` chooses a few-shot test."""
    baseline = rows[table.baseline]
    return [compare(row, baseline, table.metric, shots) for row in rows.values()]


def compare(
    results: RowResults, other: RowResults, metric: str, shots: int | None = None
) -> Comparison:
    """A row, compared with another."""
    if not results.tested:
        return Comparison(results, ours=None)
    ours = _mean(results, shots).times(100)
    adapted = None
    if shots is not None:
        adapted = max(find_test(r, shots)["adapted"] for r in results.finished.values())
    # If some seeds diverge, the others are a selection of the lucky ones: no comparison.
    lucky = bool(results.diverged or other.diverged)
    both = [] if lucky else sorted(results.finished.keys() & other.finished.keys())
    if not both or not other.tested or results.row.name == other.row.name:
        return Comparison(results, ours, adapted=adapted)
    difference = _difference(results, other, both, shots).times(100)
    better = None
    if difference.contains(0.0) is False:
        better = (difference.mean < 0) == (metric == "error")
    return Comparison(results, ours, difference, better, adapted)


def on_same_episodes(tests: Sequence[Mapping[str, Any]]) -> list[list[float]] | None:
    """Accuracies of each test on the episodes that all of them share; None if they differ.

    An episode depends only on the data, the sizes, the seed and its own number. So a test of fewer
    episodes had the first ones of a longer test.
    """
    sources = {tuple(test[name] for name in _DRAWN_FROM) for test in tests}
    counts = {len(test["accuracies"]) for test in tests}
    prints = {(len(test["accuracies"]), test["fingerprint"]) for test in tests}
    if len(sources) > 1 or len(prints) > len(counts):
        return None
    return [test["accuracies"][: min(counts)] for test in tests]


def _mean(results: RowResults, shots: int | None) -> Estimate:
    """Over seeds, and episodes if all share them; one seed: over its test episodes or images."""
    records = list(results.finished.values())
    if len(records) > 1:
        if shots is not None and (same := on_same_episodes([find_test(r, shots) for r in records])):
            return over_seeds_and_episodes(same)
        return over_seeds([_value(record, shots) for record in records])
    if shots is not None:
        return over_episodes(find_test(records[0], shots)["accuracies"])
    return over_images(records[0]["error"], records[0]["metrics"]["eval"]["images"][-1])


def _difference(
    results: RowResults, other: RowResults, seeds: list[int], shots: int | None
) -> Estimate:
    """Seed by seed, and episode by episode where both were tested on the same ones."""
    pairs = [(results.finished[seed], other.finished[seed]) for seed in seeds]
    if shots is not None:
        tests = [find_test(record, shots) for pair in pairs for record in pair]
        if same := on_same_episodes(tests):
            return paired_over_episodes(same[::2], same[1::2])
    values = [(_value(ours, shots), _value(theirs, shots)) for ours, theirs in pairs]
    return paired_over_seeds([a for a, _ in values], [b for _, b in values])


def _value(record: Record, shots: int | None) -> float:
    return float(record["error"] if shots is None else find_test(record, shots)["mean"])
