"""What was measured, by pool, backbone, ways and shots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..intervals import Estimate, over_episodes, over_seeds
from ..records import read_record

__all__ = ["HEADS", "Cell", "Study", "part_name", "read_studies", "stored_parts", "task_count"]

HEADS = ("ensemble", "linear", "ridge", "proto", "laplace")
_FEATURES = 1280  # of every EfficientNet-Lite


@dataclass
class Cell:
    """The results of tasks with the same number of ways and shots.

    Attributes:
        accuracies: by method, one per task. Methods share tasks; some have only the first ones.
        seconds: by method, the mean time to learn a task, one for each file.
        parameters: by method, how many are learned.
        tuned: the methods that change the network, not only the classifier.
    """

    n_way: int
    n_shot: int
    accuracies: dict[str, list[float]] = field(default_factory=dict)
    seconds: dict[str, list[float]] = field(default_factory=dict)
    parameters: dict[str, int] = field(default_factory=dict)
    tuned: list[str] = field(default_factory=list)

    def add(self, record: dict[str, Any]) -> None:
        """The results of a file; those of further tasks follow the ones that are here."""
        for name, values in record["accuracies"].items():
            self.accuracies.setdefault(name, []).extend(values)
            self.seconds.setdefault(name, []).append(record["seconds"][name])
        if "parameters" in record:
            self.parameters |= record["parameters"]
            self.tuned += [name for name in record["parameters"] if name not in self.tuned]
        else:
            self.parameters |= dict.fromkeys(record["accuracies"], self.n_way * (_FEATURES + 1))

    def accuracy(self, method: str) -> Estimate:
        return _mean(self.accuracies[method]).times(100)

    def difference(self, method: str, other: str) -> Estimate:
        """In points, on the tasks that both have."""
        pairs = zip(self.accuracies[method], self.accuracies[other], strict=False)
        return _mean([a - b for a, b in pairs]).times(100)

    def best_head(self) -> str:
        heads = [name for name in HEADS if name in self.accuracies]
        return max(heads, key=lambda name: self.accuracy(name).mean)


@dataclass
class Study:
    """All results of a pool with a backbone."""

    pool: str
    backbone: str
    image_size: int
    cells: dict[tuple[int, int], Cell]

    def methods(self) -> list[str]:
        """Those that every cell has."""
        cells = list(self.cells.values())
        return [
            name for name in cells[0].accuracies if all(name in cell.accuracies for cell in cells)
        ]


def _mean(values: Sequence[float]) -> Estimate:
    """With its interval over tasks; Student's if there are few."""
    return over_seeds(values) if len(values) < 30 else over_episodes(values)


def part_name(name: str, first: int) -> str:
    """The file of the tasks from a number on."""
    return f"{name}-from-{first}.json" if first else f"{name}.json"


def stored_parts(folder: Path, name: str) -> list[dict[str, Any]]:
    """The files of a comparison that are there, in the order of their tasks."""
    parts: list[dict[str, Any]] = []
    first = 0
    while (record := read_record(folder / part_name(name, first))) is not None:
        parts.append(record)
        first += task_count(record)
    return parts


def task_count(record: dict[str, Any]) -> int:
    return len(next(iter(record["accuracies"].values())))


def read_studies(folder: Path) -> list[Study]:
    """From all files in a folder, in the order of backbones and pools."""
    records = [
        record
        for file in sorted(folder.rglob("*.json"))
        if "-from-" not in file.name
        for record in stored_parts(file.parent, file.stem)
    ]
    studies: dict[tuple[int, str, str], Study] = {}
    for record in records:
        key = record["image_size"], record["backbone"], record["pool"]
        study = studies.setdefault(key, Study(key[2], key[1], key[0], {}))
        where = record["n_way"], record["n_shot"]
        study.cells.setdefault(where, Cell(*where)).add(record)
    for study in studies.values():
        study.cells = dict(sorted(study.cells.items()))
    return [studies[key] for key in sorted(studies, key=lambda k: (k[1], -k[0], k[2]))]
