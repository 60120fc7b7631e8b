"""Which runs a table asks for, and in what order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..tables.row import Row, Table

__all__ = ["Job", "jobs_of"]


@dataclass(frozen=True)
class Job:
    """A row to be run from a seed."""

    row: Row
    table: Table
    budget: str
    seed: int

    @property
    def name(self) -> str:
        return self.row.key(self.budget, self.seed)

    @property
    def before(self) -> Job | None:
        """What trains the network that this one begins with."""
        if self.row.begins_with is None:
            return None
        return replace(self, row=self.table.row(self.row.begins_with))


def jobs_of(
    tables: Sequence[Table], budget: str, seeds: int, rows: Sequence[str] = ()
) -> list[Job]:
    """What is to be done, each once: table by table, seed by seed."""
    jobs: dict[str, Job] = {}
    for table in tables:
        wanted = [table.row(name) for name in rows] or list(table.rows)
        for seed in range(seeds):
            for row in wanted:
                for needed in _with_needs(table, row):
                    job = Job(needed, table, budget, seed)
                    jobs.setdefault(job.name, job)
    return list(jobs.values())


def _with_needs(table: Table, row: Row) -> list[Row]:
    needs = [] if row.begins_with is None else _with_needs(table, table.row(row.begins_with))
    return [*needs, row]
