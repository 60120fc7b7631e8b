"""Jobs: which runs a table needs, and in which order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..tables.base import Row, Table

__all__ = ["Job", "jobs_of"]


@dataclass(frozen=True)
class Job:
    """A row to run from a seed."""

    row: Row
    table: Table
    budget: str
    seed: int

    @property
    def name(self) -> str:
        return self.row.key(self.budget, self.seed)

    @property
    def before(self) -> Job | None:
        """The job that trains the network this one begins with."""
        if self.row.begins_with is None:
            return None
        return replace(self, row=self.table.row(self.row.begins_with))


def jobs_of(
    tables: Sequence[Table], budget: str, seeds: int, rows: Sequence[str] = ()
) -> list[Job]:
    """The jobs of tables, each once: table by table, seed by seed; ``rows`` limits them."""
    jobs: dict[str, Job] = {}
    for table in tables:
        selection = [table.row(name) for name in rows] or list(table.rows)
        for seed in range(seeds):
            for row in selection:
                for required in _with_requirements(table, row):
                    job = Job(required, table, budget, seed)
                    jobs.setdefault(job.name, job)
    return list(jobs.values())


def _with_requirements(table: Table, row: Row) -> list[Row]:
    """A row, after the rows whose networks it begins with."""
    if row.begins_with is None:
        return [row]
    return [*_with_requirements(table, table.row(row.begins_with)), row]
