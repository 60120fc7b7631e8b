"""Jobs: which runs a table needs, and in which order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..tables.base import Row, Table

__all__ = ["Job", "jobs_of"]


@dataclass(frozen=True)
class Job:
    """A row to run from a seed.

    Args:
        row: the row.
        budget: smoke, short, long or paper.
        seed: the seed.
        before: the job that trains the network this one starts from.
    """

    row: Row
    budget: str
    seed: int
    before: Job | None = None

    @property
    def name(self) -> str:
        return self.row.key(self.budget, self.seed)


def jobs_of(
    tables: Sequence[Table], budget: str, seeds: int, rows: Sequence[str] = ()
) -> list[Job]:
    """The jobs of tables, each once: table by table, seed by seed; ``rows`` limits them."""
    jobs: dict[str, Job] = {}
    for table in tables:
        starts = table.starts(budget, rows)
        for seed in range(seeds):
            of_seed: dict[str, Job] = {}
            for name, start in starts.items():
                before = None if start is None else of_seed[start]
                of_seed[name] = Job(table.row(name), budget, seed, before)
            for job in of_seed.values():
                jobs.setdefault(job.name, job)
    return list(jobs.values())
