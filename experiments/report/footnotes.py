"""Notes below a table: how it deviates from the paper, what is missing, and what it was run on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean

from ..tables.base import SEEDS, Table
from .origins import origins
from .row_results import RowResults, other_network, outdated

__all__ = ["footnotes"]


def footnotes(table: Table, rows: Mapping[str, RowResults], budget: str) -> Iterator[str]:
    """What a reader should know about the numbers, a sentence or two each."""
    yield f"Budget `{budget}`: {table.budgets[budget]}."
    yield from table.notes_at(budget)
    yield from (f"{of.row.title}: {of.row.deviation}" for of in rows.values() if of.row.deviation)
    starts = [f"`{name}` from `{row.starts_from}`" for name, row in rows.items() if row.starts_from]
    if starts:
        yield f"Rows that start from the trained network of another row: {', '.join(starts)}."
    for name, row in rows.items():
        if row.diverged:
            steps = (f"{row.by_seed[s]['diverged']} (seed {s})" for s in row.diverged)
            yield f"`{name}` diverged at step {', '.join(steps)}."
    if table.metric == "accuracy":
        yield from _fewer_episodes(rows, table.baseline)
        yield from _tested_weights(rows, of_all=budget == "long")
        if budget == "long":
            yield from _late_validations(rows)
    yield from _taps_off(rows)
    yield from _incomplete(rows)
    yield from _changed(rows)
    yield from origins(record for row in rows.values() for record in row.by_seed.values())


def _fewer_episodes(rows: Mapping[str, RowResults], baseline: str) -> Iterator[str]:
    """Rows that were tested on fewer episodes than the baseline."""
    counts = {
        name: {len(t["accuracies"]) for r in row.finished.values() for t in r["tests"]}
        for name, row in rows.items()
    }
    usual = max(counts[baseline], default=0)
    for name, of_row in counts.items():
        if of_row and min(of_row) < usual:
            yield (
                f"`{name}` was tested on the first {min(of_row)} of the {usual} episodes of the "
                f"baseline; its difference is over those."
            )


def _tested_weights(rows: Mapping[str, RowResults], of_all: bool) -> Iterator[str]:
    """When rows had their best weights in validation: all of them, or if in the first half."""
    for name, row in rows.items():
        steps = [
            (record["tests"][0]["weights_step"], record["metrics"]["eval"]["step"][-1])
            for record in row.finished.values()
            if record["tests"] and "eval" in record["metrics"]
        ]
        if steps and (of_all or any(2 * best <= last for best, last in steps)):
            shares = ", ".join(f"{best} of {last}" for best, last in steps)
            yield (
                f"`{name}` was tested with the weights that did best on the validation classes: "
                f"those after steps {shares}."
            )


def _late_validations(rows: Mapping[str, RowResults]) -> Iterator[str]:
    """Whether accuracy on the validation classes was still rising when training ended."""
    late = []
    for name, row in rows.items():
        for seed, record in row.finished.items():
            errors = record["metrics"].get("eval", {}).get("error", ())
            if quarter := len(errors) // 4:
                parts = (errors[-2 * quarter : -quarter], errors[-quarter:])
                before, last = (100 * (1 - fmean(part)) for part in parts)
                of_several = f" (seed {seed})" if len(row.finished) > 1 else ""
                late.append(f"`{name}`{of_several} {before:.1f} and {last:.1f}")
    if late:
        yield (
            f"Mean accuracy on the validation classes in the third and the last quarter of "
            f"training, in %: {', '.join(late)}."
        )


def _taps_off(rows: Mapping[str, RowResults]) -> Iterator[str]:
    """How many taps the kernel shapes have switched off at the end of training."""
    for name, row in rows.items():
        counts = [r["taps_off"] for r in row.finished.values() if "taps_off" in r]
        if counts:
            shares = ", ".join(f"{off} of {taps}" for off, taps in counts)
            yield f"`{name}`: the kernel shapes switched off {shares} taps."


def _incomplete(rows: Mapping[str, RowResults]) -> Iterator[str]:
    """Seeds and rows that have no result."""
    most = max(len(row.by_seed) for row in rows.values())
    if most < SEEDS and any(row.tested for row in rows.values()):
        yield f"Seeds run so far: {most} of {SEEDS}."
    if missing := list(_missing(rows)):
        yield f"Not run yet: {'; '.join(missing)}."


def _missing(rows: Mapping[str, RowResults]) -> Iterator[str]:
    """Rows without any seed, then seeds that other rows of the table have."""
    if never := [f"`{name}`" for name, row in rows.items() if not row.by_seed]:
        yield ", ".join(never)
    seeds = {seed for row in rows.values() for seed in row.by_seed}
    for name, row in rows.items():
        lacking = sorted(seeds - row.by_seed.keys())
        if lacking and row.by_seed:
            yield _seeds(name, lacking)


def _changed(rows: Mapping[str, RowResults]) -> Iterator[str]:
    """Results of settings or networks that have changed since."""
    if old := [_seeds(name, seeds) for name in rows if (seeds := outdated(rows, name))]:
        yield f"Run with settings that differ from the row's current ones: {'; '.join(old)}."
    if other := [_seeds(name, seeds) for name in rows if (seeds := other_network(rows, name))]:
        yield (
            f"Started from a different training run of that network than the one in the table: "
            f"{'; '.join(other)}."
        )


def _seeds(name: str, seeds: Sequence[int]) -> str:
    return f"`{name}` seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"
