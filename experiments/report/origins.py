"""Where results come from: the versions of the code and of the data, and the machines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ..code_version import UNKNOWN
from ..records import Record
from .data_versions import describe_data

__all__ = ["changed_code", "commits_of", "names_its_code", "origins"]


def origins(results: Iterable[Record]) -> Iterator[str]:
    """Notes on results: those whose code changed, then data, machines and commits."""
    records = list(results)
    for record in records:
        yield from changed_code(f"`{record['row']}` seed {record['seed']}", record)
    yield from describe_data(records)
    machines = {
        f"{e['processor']}, {e['device']}, {e['threads']} thread{'s' * (e['threads'] > 1)} per "
        f"process, PyTorch {e['torch']}, Python {e['python']}"
        for record in records
        if (e := record.get("environment"))
    }
    commits = sorted({f"`{one}`" for record in records for one in commits_of(record)})
    yield f"Machine: {'; '.join(sorted(machines))}; commit {', '.join(commits)}."


def commits_of(record: Record) -> list[str]:
    """The versions of the code that worked on a run; older results name only the last."""
    return list(record.get("commits", [record["commit"]]))


def names_its_code(record: Record) -> bool:
    """Whether a result names the code that ran it, from the start to the end."""
    return "commit" in record and UNKNOWN not in commits_of(record)


def changed_code(name: str, record: Record) -> Iterator[str]:
    """A sentence about a run whose code has changed between its start and its end."""
    if "commit" in record and len(commits := commits_of(record)) > 1:
        yield (
            f"{name} was started by one version of the code and continued by another: "
            f"{', '.join(f'`{one}`' for one in commits)}."
        )
