"""What a run measured: one JSON object a line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..errors import RunError
from .checkpoint import write_atomically
from .folders import shortened

__all__ = ["MetricsFile"]


class MetricsFile:
    """Metrics as JSON lines; those after a checkpoint are dropped when a run goes on from it."""

    def __init__(self, path: Path, step: int) -> None:
        kept = [line for line in self.read(path) if line["step"] <= step] if step else []
        write_atomically(path, "".join(json.dumps(line) + "\n" for line in kept).encode())
        self._file = path.open("a", encoding="utf-8")

    def write(self, line: dict[str, Any]) -> None:
        """Add a line, at once."""
        self._file.write(json.dumps(line, allow_nan=False) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    @staticmethod
    def read(path: Path, needed: frozenset[str] = frozenset({"kind", "step"})) -> list[Any]:
        """The lines that are whole: a kill may have torn the last one.

        Each is an object with what is ``needed``.
        """
        if not path.is_file():
            return []
        try:
            text = path.read_text(encoding="utf-8")
            lines = [line for line in text.splitlines(keepends=True) if line.endswith("\n")]
            found = [json.loads(line) for line in lines]
        except ValueError as error:  # JSON's own, and that of text that is none
            raise RunError(f"{path}: expected JSON, got a damaged line ({error}).") from error
        for number, line in enumerate(found, 1):
            whole = isinstance(line, dict) and needed <= line.keys()
            if not whole or not isinstance(line.get("step", 0), int):
                names = f" with {' and '.join(sorted(needed))}" if needed else ""
                raise RunError(
                    f"{path}: expected an object{names} in line {number}, got "
                    f"{shortened(line)}. Delete that line to continue without it."
                )
        return found
