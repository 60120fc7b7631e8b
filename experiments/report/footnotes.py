"""Notes below a table: where it departs from the paper, what is missing, what was it run on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..tables.row import SEEDS, Table
from .comparison import Runs, other_network, outdated
from .data_sources import describe_copies

__all__ = ["notes"]


def notes(table: Table, runs: Mapping[str, Runs], budget: str) -> Iterator[str]:
    """What is to be known of the numbers, a sentence or two each."""
    yield f"Budget `{budget}`: {table.budgets[budget]}."
    yield from table.notes
    yield from (f"{row.title}: {row.departs}" for row in table.rows if row.departs)
    begun = [f"`{row.name}` with `{row.begins_with}`" for row in table.rows if row.begins_with]
    if begun:
        yield f"Begin with the network that another row has trained: {', '.join(begun)}."
    for name, of in runs.items():
        if of.diverged:
            steps = (f"{of.by_seed[s]['diverged']} (seed {s})" for s in of.diverged)
            yield f"`{name}` diverged at step {', '.join(steps)}."
    if table.metric == "accuracy":
        yield from _fewer_episodes(runs, table.baseline)
        yield from _early_weights(runs)
    yield from _switched_off(runs)
    most = max(len(of.by_seed) for of in runs.values())
    if most < SEEDS and any(of.tested for of in runs.values()):
        yield f"Seeds: {most} of the {SEEDS} that are asked for."
    missing = list(_missing(runs))
    if missing:
        yield f"Not run yet: {'; '.join(missing)}."
    if old := [_seeds(name, seeds) for name in runs if (seeds := outdated(runs, name))]:
        yield f"Run with other settings than the row has now: {'; '.join(old)}."
    if other := [_seeds(name, seeds) for name in runs if (seeds := other_network(runs, name))]:
        yield f"Began with another training of that network than is shown: {'; '.join(other)}."
    records = [record for of in runs.values() for record in of.by_seed.values()]
    for record in records:
        if len(_commits(record)) > 1:
            yield (
                f"`{record['row']}` seed {record['seed']} was begun and gone on with by different "
                f"code: {', '.join(f'`{one}`' for one in _commits(record))}."
            )
    yield from describe_copies(records)
    yield _hardware(records)


def _commits(record: dict[str, Any]) -> list[str]:
    """What code a run was worked on with; older results name the last alone."""
    return list(record.get("commits", [record["commit"]]))


def _fewer_episodes(runs: Mapping[str, Runs], baseline: str) -> Iterator[str]:
    """Rows whose mean is not over the episodes of the baseline's."""
    counts = {
        name: {len(t["accuracies"]) for r in of.finished.values() for t in r["tests"]}
        for name, of in runs.items()
    }
    usual = max(counts[baseline], default=0)
    for name, of_row in counts.items():
        if of_row and min(of_row) < usual:
            yield (
                f"`{name}` was tested on {min(of_row)} episodes, the first of the {usual} that the "
                f"baseline had; its difference is over those."
            )


def _early_weights(runs: Mapping[str, Runs]) -> Iterator[str]:
    """Rows whose best weights in validation are of the first half of training."""
    for name, of in runs.items():
        steps = [
            (record["tests"][0]["weights_step"], record["metrics"]["eval"]["step"][-1])
            for record in of.finished.values()
            if record["tests"] and "eval" in record["metrics"]
        ]
        if any(2 * best <= last for best, last in steps):
            said = ", ".join(f"{best} of {last}" for best, last in steps)
            yield f"`{name}` was best on validation classes, and is tested, after steps {said}."


def _switched_off(runs: Mapping[str, Runs]) -> Iterator[str]:
    """How many taps kernel shapes have masked out in the end."""
    for name, of in runs.items():
        known = [r["taps_off"] for r in of.finished.values() if "taps_off" in r]
        if known:
            said = ", ".join(f"{off} of {taps}" for off, taps in known)
            yield f"`{name}`: kernel shapes have switched off {said} taps."


def _missing(runs: Mapping[str, Runs]) -> Iterator[str]:
    """Rows without any seed, then seeds that other rows of the table have."""
    if never := [f"`{name}`" for name, of in runs.items() if not of.by_seed]:
        yield ", ".join(never)
    wanted = {seed for of in runs.values() for seed in of.by_seed}
    for name, of in runs.items():
        lacking = sorted(wanted - of.by_seed.keys())
        if lacking and of.by_seed:
            yield _seeds(name, lacking)


def _hardware(records: Sequence[dict[str, Any]]) -> str:
    machines = {
        f"{e['processor']}, {e['device']}, {e['threads']} thread{'s' * (e['threads'] > 1)} a "
        f"process, PyTorch {e['torch']}, Python {e['python']}"
        for record in records
        if (e := record.get("environment"))
    }
    commits = {f"`{one}`" for record in records for one in _commits(record)}
    said = [*sorted(machines), f"commit {', '.join(sorted(commits))}"]
    return f"Machine: {'; '.join(said)}."


def _seeds(name: str, seeds: Sequence[int]) -> str:
    return f"`{name}` seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"
