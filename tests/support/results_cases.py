"""Invented results of runs: small JSON files in the right places."""

import json
from pathlib import Path

from experiments.records import record_file, write_record
from experiments.tables import TABLES, OneStep

ENVIRONMENT = {
    "torch": "2.13", "python": "3.11", "processor": "abacus", "device": "cpu", "threads": 2,
}  # fmt: skip


def keep(results: Path, table: str, row: str, seed: int, budget="short", **outcome) -> Path:
    """Write a result as a run would; ``outcome`` is what the run measured."""
    of = TABLES[table].row(row)
    config = of.config(budget, seed)
    config = config.config if isinstance(config, OneStep) else config
    settings = {**config.to_dict(), "data_dir": None}
    if (start := TABLES[table].starts(budget)[row]) is not None:
        settings["backbone"] = start
    record = {
        "table": of.kept_in, "row": of.name, "title": of.title, "budget": budget, "seed": seed,
        "config": settings, "commit": "abc", "environment": ENVIRONMENT,
        "data_copies": {"train": "82612602206e"}, "parameters": 1234, "seconds": 90.0,
        "step_seconds": 0.25, **outcome,
    }  # fmt: skip
    file = record_file(results, of, budget, seed)
    write_record(file, record)
    return file


def keep_error(results: Path, row: str, seed: int, error: float, table: str = "table4") -> Path:
    """A classification run: errors over two epochs, the last as given, of 1,000 images."""
    over_time = {
        "step": [100, 200], "epoch": [1, 2], "seconds": [40.0, 90.0], "error": [0.9, error],
        "images": [1000, 1000],
    }  # fmt: skip
    paces = {"step": [100, 200], "step_seconds": [0.5, 0.4 + seed]}  # some steps are slowed down
    metrics = {"train": paces, "eval": over_time}
    return keep(results, table, row, seed, error=error, metrics=metrics)


def keep_tests(
    results: Path, row: str, seed: int, tests, adapted=645, fingerprint="f", budget="short"
) -> Path:
    """A few-shot run, tested with 1 and 5 shots: ``tests`` are accuracies of each by episode."""
    records = [
        {
            "n_shot": shots, "mean": sum(of) / len(of), "accuracies": of, "adapted": adapted,
            "fingerprint": f"{fingerprint}{shots}-{len(of)}", "data_copy": "t", "n_way": 5,
            "n_query": 15, "episode_seed": 0, "weights_step": 200,
        }
        for shots, of in zip((1, 5), tests, strict=True)
    ]  # fmt: skip
    metrics = {"eval": {"step": [50, 100, 200], "error": [0.6, 0.5, 0.4]}}
    return keep(results, "table6", row, seed, budget, tests=records, metrics=metrics)


def change(file: Path, **changes) -> None:
    """Change a result file, which none of our code does."""
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
