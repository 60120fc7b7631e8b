"""Result files: what is stored of a run. One JSON file per run, written once and never edited.

::

    results/table4/short/dynamic-diagonal-0.json

A file holds the configuration, the commit, the machine, the fingerprints of the data, the metrics
over time, column by column, and the results of the tests.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from neural_similarity.errors import FileFormatError
from neural_similarity.train import read_json, write_file

from .tables.base import Row

__all__ = [
    "RESULTS",
    "Record",
    "as_columns",
    "read_record",
    "record_file",
    "write_record",
    "write_text",
]

RESULTS = Path(__file__).parent / "results"

Record = dict[str, Any]


def record_file(results: Path, row: Row, budget: str, seed: int) -> Path:
    """The file of a run's result."""
    return results / f"{row.key(budget, seed)}.json"


def read_record(file: Path) -> Record | None:
    """A result; None if there is no such file."""
    if not file.is_file():
        return None
    advice = "Move the file away: nsl reproduce then runs it again."
    return read_json(file, dict[str, Any], FileFormatError, advice)


def write_record(file: Path, record: Record) -> None:
    """Write a result; an existing result is never overwritten."""
    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        write_file(file, _dump(record).encode(), overwrite=False)
    except FileExistsError:
        raise FileExistsError(f"{file}: expected no result yet, got one.") from None


def write_text(file: Path, text: str) -> None:
    """Replace a file; it is whole at any time."""
    file.parent.mkdir(parents=True, exist_ok=True)
    write_file(file, text.encode())


def as_columns(lines: Iterable[dict[str, Any]], digits: int = 5) -> dict[str, dict[str, list[Any]]]:
    """Metrics by kind and name: ``{"train": {"step": [...], "loss": [...]}, "eval": ...}``.

    A value that a line lacks is null, so all columns of a kind have the same length.
    """
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        by_kind.setdefault(line["kind"], []).append(line)
    return {
        kind: {
            name: [_rounded(line.get(name), digits) for line in of_kind]
            for name in dict.fromkeys(name for line in of_kind for name in line)
            if name != "kind"
        }
        for kind, of_kind in by_kind.items()
    }


def _rounded(value: Any, digits: int) -> Any:
    return float(f"{value:.{digits}g}") if isinstance(value, float) else value


def _dump(record: Record) -> str:
    """One line a value, so that long columns do not make long files."""
    lines = [f" {json.dumps(name)}: {json.dumps(value)}" for name, value in record.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"
