"""Tables of what was measured, for people."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from ..markdown import table
from ..records import read_record

__all__ = ["all_tables"]


def all_tables(folder: Path) -> str:
    """A table for every pool and backbone: accuracy by method, ways and shots."""
    records = [record for file in sorted(folder.rglob("*.json")) if (record := read_record(file))]
    groups: dict[tuple[str, str, int], list[dict[str, Any]]] = defaultdict(list)
    for record in records:
        groups[record["pool"], record["backbone"], record["image_size"]].append(record)
    parts = []
    for (pool, backbone, side), members in groups.items():
        parts.append(f"**{pool}**, {backbone}, {side} pixels\n\n{_table(members)}")
    return "\n\n".join(parts)


def _table(records: list[dict[str, Any]]) -> str:
    cells: dict[str, dict[tuple[int, int], str]] = defaultdict(dict)
    columns = sorted({(record["n_way"], record["n_shot"]) for record in records})
    for record in records:
        for name, values in record["accuracies"].items():
            cells[name][record["n_way"], record["n_shot"]] = _percent(values)
    head = ["method", *(f"{way} ways, {shot}" for way, shot in columns)]
    rows = [[name, *(row.get(column, "–") for column in columns)] for name, row in cells.items()]
    return table(head, rows)


def _percent(values: list[float]) -> str:
    """Mean and 95 % interval of the mean over tasks."""
    if len(values) < 2:
        return f"{100 * values[0]:.1f}"
    half = 1.96 * stdev(values) / len(values) ** 0.5
    return f"{100 * fmean(values):.1f} ± {100 * half:.1f}"
