"""The results of a table's rows: read from the files, checked, and compared with the rows of today.

A result whose settings are not those that its row has now still counts; the report names it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from neural_similarity.errors import FileFormatError
from neural_similarity.fewshot import FewShotConfig
from neural_similarity.train import TrainConfig

from ..queue.run_record import tested_parameters
from ..records import Record, read_record, record_file
from ..tables.base import OneStep, Row, Table

__all__ = [
    "RowResults",
    "find_test",
    "has_results",
    "other_network",
    "outdated",
    "read_table",
    "shots_of",
]

_REQUIRED = ("table", "row", "budget", "seed", "config", "commit", "parameters")


@dataclass(frozen=True)
class RowResults:
    """The results of a row at a budget, by seed; ``starts_from`` is another row, or None."""

    row: Row
    budget: str
    by_seed: Mapping[int, Record]
    starts_from: str | None

    @property
    def diverged(self) -> list[int]:
        """Seeds whose loss stopped being finite."""
        return [seed for seed, record in self.by_seed.items() if "diverged" in record]

    @property
    def finished(self) -> dict[int, Record]:
        """The results of the other seeds."""
        return {seed: r for seed, r in self.by_seed.items() if "diverged" not in r}

    @property
    def tested(self) -> bool:
        """Whether any seed was trained to its end and tested, not only timed."""
        return any("error" in r or "tests" in r for r in self.finished.values())

    @property
    def pace(self) -> float | None:
        """Seconds of a training step at the fastest pace: the fastest tenth of the fastest seed.

        Runs share their machine with other work. The minimum over all steps would also be fast,
        but it would fall with the number of seeds.
        """
        columns = (r.get("metrics", {}).get("train", {}) for r in self.finished.values())
        by_seed = (sorted(column.get("step_seconds", ())) for column in columns)
        return min((times[len(times) // 10] for times in by_seed if times), default=None)

    def parameters(self, seed: int) -> int:
        """Parameters of the network that is tested.

        Older few-shot results count the classifier of the training classes, too.
        """
        record = self.by_seed[seed]
        if "tests" not in record or "trained_parameters" in record:
            return int(record["parameters"])
        config = FewShotConfig.from_dict(record["config"])
        side = config.image_size or 32
        return tested_parameters(config, classes=2, in_channels=3, image_size=side)

    def is_current(self, seed: int) -> bool:
        """Whether a seed was run with the settings that the row has now."""
        record = self.by_seed[seed]
        config = self.row.config(self.budget, seed)
        if isinstance(config, OneStep):
            if record.get("image_size") != config.image_size:
                return False
            config = config.config
        now = {**config.to_dict(), "data_dir": None}
        if self.starts_from is not None:
            now["backbone"] = self.starts_from
        # An older result lacks newer settings: each had the value that is its default now.
        now, defaults = (json.loads(json.dumps(of)) for of in (now, type(config)().to_dict()))
        newer = {name: defaults[name] for name in now.keys() - record["config"].keys()}
        recorded = {**record["config"], **newer}
        return _agree(now, recorded) and _method_agrees(config, record)


def read_table(table: Table, results: Path, budget: str) -> dict[str, RowResults]:
    """All results of a table's rows at a budget, by the row's name."""
    starts = table.starts(budget)
    rows = table.at(budget).rows
    return {row.name: _read_row(row, results, budget, starts[row.name]) for row in rows}


def has_results(table: Table, rows: Mapping[str, RowResults]) -> bool:
    """Whether a row of this table was run, not counting rows that it shares with other tables."""
    return any(of.by_seed for of in rows.values() if of.row.kept_in == table.name)


def outdated(rows: Mapping[str, RowResults], name: str) -> list[int]:
    """Seeds of a row whose settings, or those of the row it starts from, have changed since."""
    row = rows[name]
    before = [] if row.starts_from is None else outdated(rows, row.starts_from)
    return [seed for seed in row.by_seed if seed in before or not row.is_current(seed)]


def other_network(rows: Mapping[str, RowResults], name: str) -> list[int]:
    """Seeds of a row that began with another network than the one whose result is stored.

    That network was trained again meanwhile, by other code or on another machine. Older results
    do not name their networks.
    """
    row = rows[name]
    if row.starts_from is None:
        return []
    networks = {s: r.get("network") for s, r in rows[row.starts_from].by_seed.items()}
    starts = {s: r.get("began_with") for s, r in row.by_seed.items()}
    return [
        s for s in starts if None not in (starts[s], networks.get(s)) and starts[s] != networks[s]
    ]


def shots_of(rows: Mapping[str, RowResults]) -> list[int]:
    """The numbers of shots that a few-shot table was tested with."""
    records = (record for row in rows.values() for record in row.finished.values())
    return sorted({test["n_shot"] for record in records for test in record["tests"]})


def find_test(record: Record, shots: int) -> dict[str, Any]:
    """A result's test with this number of shots."""
    for test in record["tests"]:
        if test["n_shot"] == shots:
            return dict(test)
    raise FileFormatError(
        f"{record['table']}/{record['budget']}/{record['row']}-{record['seed']}: expected a test "
        f"with {shots} shots, got none. The other runs of the table have one."
    )


def _method_agrees(config: TrainConfig | FewShotConfig, record: Record) -> bool:
    """Whether a method was tested with the options that it has now, defaults included."""
    if not isinstance(config, FewShotConfig):
        return True
    now = json.loads(json.dumps(asdict(config.build_method())))
    return all(_agree(now, test.get("method_options", {})) for test in record.get("tests", ()))


def _agree(now: Mapping[str, Any], recorded: Mapping[str, Any]) -> bool:
    return all(now.get(name) == value for name, value in recorded.items())


def _read_row(row: Row, results: Path, budget: str, starts_from: str | None) -> RowResults:
    folder = record_file(results, row, budget, 0).parent
    name = re.compile(re.escape(row.name) + r"-(\d+)\.json")
    seeds = sorted(int(m[1]) for f in folder.glob("*.json") if (m := name.fullmatch(f.name)))
    files = {seed: record_file(results, row, budget, seed) for seed in seeds}
    records = {seed: _read_checked(file, row, seed) for seed, file in files.items()}
    return RowResults(row, budget, records, starts_from)


def _read_checked(file: Path, row: Row, seed: int) -> Record:
    """A result that is complete and in the right place."""
    record = read_record(file) or {}
    missing = list(_missing_parts(record))
    if missing:
        raise FileFormatError(
            f"{file}: expected the result of a run, got one without {', '.join(missing)}. Move the "
            f"file and the run's folder away: nsl reproduce then runs it again."
        )
    expected = f"{row.kept_in}/{row.name}, seed {seed}"
    actual = f"{record['table']}/{record['row']}, seed {record['seed']}"
    if actual != expected:
        raise FileFormatError(f"{file}: expected the result of {expected}, got that of {actual}.")
    return record


def _missing_parts(record: Record) -> Iterator[str]:
    yield from (name for name in _REQUIRED if name not in record)
    if not any(name in record for name in ("error", "tests", "diverged", "losses")):
        yield "error, tests, diverged or losses"
