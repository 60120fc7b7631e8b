"""What the report says about the versions of the code that worked on a run."""

from __future__ import annotations

from collections.abc import Iterator

from ..code_version import UNKNOWN
from ..records import Record

__all__ = ["changed_code", "commits_of", "names_its_code"]


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
