"""What is kept of a run: one JSON file, written once and never edited.

::

    results/table4/short/dynamic-diagonal-0.json

It holds the configuration, commit, machine and copies of the data, the metrics over time, column by
column, and what the network was tested to do.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import neural_similarity
from neural_similarity.errors import FileFormatError

from .tables.row import Row

__all__ = [
    "RESULTS",
    "Record",
    "as_columns",
    "commit",
    "read_record",
    "record_file",
    "write_record",
    "write_text",
]

RESULTS = Path(__file__).parent / "results"

Record = dict[str, Any]


def record_file(results: Path, row: Row, budget: str, seed: int) -> Path:
    """Where the result of a run is kept."""
    return results / f"{row.key(budget, seed)}.json"


def read_record(file: Path) -> Record | None:
    """A result, if it is there."""
    if not file.is_file():
        return None
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        record = f"a damaged file ({error})"
    if not isinstance(record, dict):
        raise FileFormatError(
            f"{file}: expected the result of a run as JSON, got {record}. Move it away, and nsl "
            f"reproduce makes it again."
        )
    return record


def write_record(file: Path, record: Record) -> None:
    """Keep a result; one that is there already is never replaced."""
    file.parent.mkdir(parents=True, exist_ok=True)
    written = file.with_suffix(f".{os.getpid()}.part")
    try:
        with written.open("w", encoding="utf-8") as part:
            part.write(_dump(record))
            part.flush()
            os.fsync(part.fileno())  # a power cut must not leave a name without its content
        _named(written, file)
    finally:
        written.unlink(missing_ok=True)


def _named(written: Path, file: Path) -> None:
    """Give a file its name, unless another has it."""
    try:
        os.link(written, file)  # fails if there is one, where renaming would replace it
    except OSError:  # there is one, or there are no such links on this system
        if file.exists():
            raise FileExistsError(f"{file}: expected no result yet, got one.") from None
        written.replace(file)


def write_text(file: Path, text: str) -> None:
    """Replace a file; it is whole at any time."""
    file.parent.mkdir(parents=True, exist_ok=True)
    written = file.with_suffix(f".{os.getpid()}.part")
    try:
        written.write_text(text, encoding="utf-8")
        written.replace(file)
    finally:
        written.unlink(missing_ok=True)


def as_columns(lines: Iterable[dict[str, Any]], digits: int = 5) -> dict[str, dict[str, list[Any]]]:
    """Metrics by kind and name: ``{"train": {"step": [...], "loss": [...]}, "eval": ...}``.

    What a line does not have is null there, so that all columns of a kind are as long.
    """
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        by_kind.setdefault(line["kind"], []).append(line)
    return {
        kind: {
            name: [_rounded(line.get(name), digits) for line in of]
            for name in dict.fromkeys(name for line in of for name in line)
            if name != "kind"
        }
        for kind, of in by_kind.items()
    }


def _rounded(value: Any, digits: int) -> Any:
    return float(f"{value:.{digits}g}") if isinstance(value, float) else value


@cache
def commit() -> str:
    """The commit that runs, with a mark if files were changed since; as of the first call.

    Unknown where the library is not the one beside these experiments.
    """
    if not Path(neural_similarity.__file__).is_relative_to(Path(__file__).parents[1]):
        return "unknown"
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parent)
    return done.stdout.strip() or "unknown"


def _dump(record: Record) -> str:
    """One line a value, so that long columns do not make long files."""
    lines = [f" {json.dumps(name)}: {json.dumps(value)}" for name, value in record.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"
