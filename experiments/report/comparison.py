"""From the JSON files to the numbers of a table: each row over its seeds, beside the baseline."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from neural_similarity.errors import FileFormatError
from neural_similarity.fewshot import FewShotConfig
from neural_similarity.train import TrainConfig

from ..records import Record, read_record, record_file
from ..tables.row import OneStep, Row, Table
from .intervals import (
    Estimate,
    over_episodes,
    over_images,
    over_seeds,
    over_seeds_and_episodes,
    paired_over_episodes,
    paired_over_seeds,
)

__all__ = [
    "Finding",
    "Runs",
    "compared",
    "findings",
    "has_results",
    "on_same_episodes",
    "other_network",
    "outdated",
    "read_table",
    "shots_of",
]

_DRAWN_FROM = ("data_copy", "n_way", "n_shot", "n_query", "episode_seed")
_NEEDED = ("table", "row", "budget", "seed", "config", "commit", "parameters")


@dataclass(frozen=True)
class Runs:
    """What is there of a row at a budget, by seed."""

    row: Row
    budget: str
    by_seed: Mapping[int, Record]

    @property
    def diverged(self) -> list[int]:
        """Seeds that ended in numbers no more."""
        return [seed for seed, record in self.by_seed.items() if "diverged" in record]

    @property
    def finished(self) -> dict[int, Record]:
        """The others."""
        return {seed: r for seed, r in self.by_seed.items() if "diverged" not in r}

    @property
    def tested(self) -> bool:
        """Whether any came to its end, and was more than a step to be timed."""
        return any("error" in r or "tests" in r for r in self.finished.values())

    @property
    def pace(self) -> float | None:
        """Seconds of a training step when little disturbed: a seed's fastest tenth, the best seed.

        The very fewest would be lower the more seeds there are.
        """
        lines = (r.get("metrics", {}).get("train", {}) for r in self.finished.values())
        noted = (sorted(of.get("step_seconds", ())) for of in lines)
        return min((times[len(times) // 10] for times in noted if times), default=None)

    def as_now(self, seed: int) -> bool:
        """Whether a seed was run with the settings that the row has now."""
        record = self.by_seed[seed]
        config, then = self.row.config(self.budget, seed), record["config"]
        if isinstance(config, OneStep):
            if record.get("image_size") != config.image_size:
                return False
            config = config.config
        now = {**config.to_dict(), "data_dir": None}
        if self.row.begins_with is not None:
            now["backbone"] = self.row.begins_with
        # A setting that is younger than the result was as it usually is.
        now, usual = (json.loads(json.dumps(of)) for of in (now, type(config)().to_dict()))
        younger = {name: usual[name] for name in now.keys() - then.keys()}
        return _agree(now, {**then, **younger}) and _method_as_now(config, record)


@dataclass(frozen=True)
class Finding:
    """A row of a table in numbers; accuracies and errors in percent.

    Args:
        runs: what it is from.
        ours: mean over the seeds that did not diverge.
        difference: to the baseline, over the seeds that both have.
        better: whether that is an improvement; ``None`` if chance may have made it.
        adapted: numbers adapted in an episode.
    """

    runs: Runs
    ours: Estimate | None
    difference: Estimate | None = None
    better: bool | None = None
    adapted: int | None = None

    @property
    def row(self) -> Row:
        return self.runs.row

    @property
    def parameters(self) -> int | None:
        return next((r["parameters"] for r in self.runs.by_seed.values()), None)

    @property
    def minutes(self) -> float | None:
        """Of training, at the pace of the least disturbed steps."""
        curves = [r.get("metrics", {}).get("eval") for r in self.runs.finished.values()]
        steps = [curve["step"][-1] for curve in curves if curve]
        pace = self.runs.pace
        return None if pace is None or not steps else pace * max(steps) / 60

    @property
    def step_seconds(self) -> float | None:
        """Of a training step."""
        times = [r["step_seconds"] for r in self.runs.finished.values()]
        return fmean(times) if times and None not in times else None


def read_table(table: Table, results: Path, budget: str) -> dict[str, Runs]:
    """All results of a table's rows, by name."""
    return {row.name: _read_row(row, results, budget) for row in table.rows}


def has_results(table: Table, runs: Mapping[str, Runs]) -> bool:
    """Whether any row of a table was run, besides those that it shares with others."""
    return any(runs[row.name].by_seed for row in table.rows if row.kept_in == table.name)


def outdated(runs: Mapping[str, Runs], name: str) -> list[int]:
    """Seeds of a row that were run with other settings than it, or what it begins with, has now."""
    of = runs[name]
    before = [] if of.row.begins_with is None else outdated(runs, of.row.begins_with)
    return [seed for seed in of.by_seed if seed in before or not of.as_now(seed)]


def other_network(runs: Mapping[str, Runs], name: str) -> list[int]:
    """Seeds of a row that began with another network than the result of that row is of.

    It was trained again meanwhile, by other code or on another machine. Older results do not tell.
    """
    of = runs[name]
    if of.row.begins_with is None:
        return []
    theirs = {s: r.get("network") for s, r in runs[of.row.begins_with].by_seed.items()}
    ours = {s: r.get("began_with") for s, r in of.by_seed.items()}
    return [s for s in ours if None not in (ours[s], theirs.get(s)) and ours[s] != theirs[s]]


def shots_of(runs: Mapping[str, Runs]) -> list[int]:
    """Examples a class that a few-shot table was tested with."""
    records = (record for of in runs.values() for record in of.finished.values())
    return sorted({test["n_shot"] for record in records for test in record["tests"]})


def findings(table: Table, runs: Mapping[str, Runs], shots: int | None = None) -> list[Finding]:
    """The rows of a table, in numbers; of a few-shot table, for so many examples a class."""
    baseline = runs[table.baseline]
    return [compared(runs[row.name], baseline, table.metric, shots) for row in table.rows]


def compared(runs: Runs, baseline: Runs, metric: str, shots: int | None) -> Finding:
    """A row, beside another."""
    if not runs.tested:
        return Finding(runs, ours=None)
    ours = _ours(runs, shots).times(100)
    adapted = None
    if shots is not None:
        adapted = max(_test(r, shots)["adapted"] for r in runs.finished.values())
    # What is left when some seeds diverge is a choice of the lucky ones: not to be compared.
    lucky = bool(runs.diverged or baseline.diverged)
    both = [] if lucky else sorted(runs.finished.keys() & baseline.finished.keys())
    if not both or not baseline.tested or runs.row.name == baseline.row.name:
        return Finding(runs, ours, adapted=adapted)
    difference = _difference(runs, baseline, both, shots).times(100)
    better = None
    if difference.contains(0.0) is False:
        better = (difference.mean < 0) == (metric == "error")
    return Finding(runs, ours, difference, better, adapted)


def _method_as_now(config: TrainConfig | FewShotConfig, record: Record) -> bool:
    """Whether the options that a method was tested with are those it has now, usual ones too."""
    if not isinstance(config, FewShotConfig):
        return True
    now = json.loads(json.dumps(asdict(config.build_method())))
    return all(_agree(now, test.get("method_options", {})) for test in record.get("tests", ()))


def _agree(now: Record, then: Record) -> bool:
    return all(now.get(name) == value for name, value in then.items())


def _ours(runs: Runs, shots: int | None) -> Estimate:
    """Over seeds, and episodes if all had the same; a single seed over what it was tested on."""
    records = list(runs.finished.values())
    if len(records) > 1:
        if shots is not None and (same := on_same_episodes([_test(r, shots) for r in records])):
            return over_seeds_and_episodes(same)
        return over_seeds([_value(record, shots) for record in records])
    if shots is not None:
        return over_episodes(_test(records[0], shots)["accuracies"])
    return over_images(records[0]["error"], records[0]["metrics"]["eval"]["images"][-1])


def _difference(runs: Runs, baseline: Runs, seeds: list[int], shots: int | None) -> Estimate:
    """Seed by seed, and episode by episode where both were tested on the same."""
    pairs = [(runs.finished[seed], baseline.finished[seed]) for seed in seeds]
    if shots is not None:
        tests = [_test(record, shots) for pair in pairs for record in pair]
        if same := on_same_episodes(tests):
            return paired_over_episodes(same[::2], same[1::2])
    values = [(_value(ours, shots), _value(theirs, shots)) for ours, theirs in pairs]
    return paired_over_seeds([a for a, _ in values], [b for _, b in values])


def on_same_episodes(tests: Sequence[Mapping[str, Any]]) -> list[list[float]] | None:
    """Accuracies of each test on the episodes that all of them had; ``None`` if they differ.

    An episode depends on the data, the sizes, the seed and its own number alone. So a test of
    fewer episodes had the first ones of a longer test.
    """
    drawn = {tuple(test[name] for name in _DRAWN_FROM) for test in tests}
    counts = {len(test["accuracies"]) for test in tests}
    prints = {(len(test["accuracies"]), test["fingerprint"]) for test in tests}
    if len(drawn) > 1 or len(prints) > len(counts):
        return None
    return [test["accuracies"][: min(counts)] for test in tests]


def _value(record: Record, shots: int | None) -> float:
    return float(record["error"] if shots is None else _test(record, shots)["mean"])


def _test(record: Record, shots: int) -> dict[str, Any]:
    for test in record["tests"]:
        if test["n_shot"] == shots:
            return dict(test)
    raise FileFormatError(
        f"{record['table']}/{record['budget']}/{record['row']}-{record['seed']}: expected a test "
        f"with {shots} shots, got none. The other runs of the table have one."
    )


def _read_row(row: Row, results: Path, budget: str) -> Runs:
    folder = record_file(results, row, budget, 0).parent
    name = re.compile(re.escape(row.name) + r"-(\d+)\.json")
    seeds = sorted(int(m[1]) for f in folder.glob("*.json") if (m := name.fullmatch(f.name)))
    files = {seed: record_file(results, row, budget, seed) for seed in seeds}
    return Runs(row, budget, {seed: _checked(file, row, seed) for seed, file in files.items()})


def _checked(file: Path, row: Row, seed: int) -> Record:
    """A result that is whole and in its place."""
    record = read_record(file) or {}
    missing = list(_missing(record))
    if missing:
        raise FileFormatError(
            f"{file}: expected the result of a run, got one without {', '.join(missing)}. "
            f"Move it and the run's folder of work away, and nsl reproduce makes it again."
        )
    expected = f"{row.kept_in}/{row.name}, seed {seed}"
    found = f"{record['table']}/{record['row']}, seed {record['seed']}"
    if found != expected:
        raise FileFormatError(f"{file}: expected the result of {expected}, got that of {found}.")
    return record


def _missing(record: Record) -> Iterator[str]:
    yield from (name for name in _NEEDED if name not in record)
    if not any(name in record for name in ("error", "tests", "diverged", "losses")):
        yield "what was found"
