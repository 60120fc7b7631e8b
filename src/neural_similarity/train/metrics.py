"""The metrics of a run: one JSON object per line."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .._json import Count, Share, build, read_json_lines
from ..errors import RunError
from .checkpoint import write_atomically

__all__ = ["ADVICE", "MetricsFile"]

ADVICE = "Delete that line to continue without it."


@dataclass(frozen=True)
class _Line:
    """What every line contains."""

    kind: str
    step: Count


@dataclass(frozen=True)
class _Measured(_Line):
    epoch: float
    seconds: float


@dataclass(frozen=True)
class _Train(_Measured):
    loss: float
    lr: float
    images_per_second: float
    step_seconds: float
    error: Share | None = None


@dataclass(frozen=True)
class _Eval(_Measured):
    error: Share
    top5_error: Share | None = None
    loss: float | None = None
    images: Count | None = None
    interval: float | None = None


_KINDS: dict[str, type[_Line]] = {"train": _Train, "eval": _Eval}


class MetricsFile:
    """Metrics as JSON lines; those after a checkpoint are dropped when a run resumes from it."""

    def __init__(self, path: Path, step: int) -> None:
        lines = [line for line in self.read(path) if line["step"] <= step] if step else []
        write_atomically(path, "".join(json.dumps(line) + "\n" for line in lines).encode())
        self._file = path.open("a", encoding="utf-8")

    def write(self, line: dict[str, Any]) -> None:
        """Add a line, and flush it."""
        self._file.write(json.dumps(line, allow_nan=False) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    @staticmethod
    def read(path: Path) -> list[dict[str, Any]]:
        """The complete, valid lines: a killed process may have truncated the last one."""
        if not path.is_file():
            return []
        lines = read_json_lines(path, RunError, ADVICE)
        for number, line in enumerate(lines, 1):
            where = f"{path}, line {number}"
            kind = build(_Line, line, where, RunError, ADVICE, others=True).kind
            build(_KINDS.get(kind, _Line), line, where, RunError, ADVICE, others=True)
        return lines
