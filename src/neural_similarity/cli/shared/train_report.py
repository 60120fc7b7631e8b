"""The result of a finished run, or of several: a table, plots and a report."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...convert import trainable_summary
from ...errors import RunError
from ...plot import Facts, Picture, Section, Table, Text, draw_comparison, draw_run, write_report
from ...train import Evaluation, Run
from .printing import print_line
from .table import print_table

__all__ = ["report_comparison", "report_run"]

_HEAD = ("similarity", "error", "95% interval", "parameters", "deployed", "ms per step")
_NOTE = (
    "The error is that of the last weights, not of the best. The interval covers the random choice "
    "of the images; it does not cover other seeds. Parameters are counted during training and, as "
    "deployed, after static similarities are merged."
)
_CAPTION = "Loss, error and learning rate"


def report_run(run: Run) -> None:
    """Print the result and write ``curves.png`` and ``report.html`` into the run."""
    _draw_curves(run)
    write_report(
        run.folder / "report.html",
        _title(run),
        [
            Section("Result", [Table(_HEAD, [_row(run)]), Text(_note(run))]),
            Section("Training", [Picture(run.folder / "curves.png", _CAPTION)]),
            *_setup(run),
        ],
    )
    print_table(_HEAD, [_row(run)])
    print_line(f"report: {run.folder / 'report.html'}")


def report_comparison(runs: Mapping[str, Run], folder: Path) -> None:
    """Print several runs as a table and write ``comparison.png`` and ``report.html``."""
    picture = folder / "comparison.png"
    first = next(iter(runs.values()))
    metrics = {name: run.metrics() for name, run in runs.items()}
    draw_comparison(metrics, picture, _evaluated_on(first))
    for run in runs.values():
        _draw_curves(run)
    rows = [_row(run) for run in runs.values()]
    write_report(
        folder / "report.html",
        f"{first.config.model} on {first.config.data}, comparison",
        [
            Section("Result", [Table(_HEAD, rows), Text(_note(first))]),
            Section("Training", [Picture(picture, "Error over epochs and over training time")]),
            *(
                Section(name, [Picture(run.folder / "curves.png", _CAPTION)])
                for name, run in runs.items()
            ),
            *_setup(first),
        ],
    )
    print_table(_HEAD, rows)
    print_line(f"plot: {picture}")
    print_line(f"report: {folder / 'report.html'}")


def _draw_curves(run: Run) -> None:
    draw_run(run.metrics(), run.folder / "curves.png", _title(run), _evaluated_on(run))


def _evaluated_on(run: Run) -> str:
    """The split that the run was evaluated on: ``"validation"`` is held out of training images."""
    return str(run.environment().get("evaluated_on", "test"))


def _row(run: Run) -> tuple[Any, ...]:
    result = _last_evaluation(run)
    low, high = result.interval()
    times = [line["step_seconds"] for line in run.metrics() if line["kind"] == "train"]
    counts = trainable_summary(run.load_model())
    config = run.config
    kind = config.similarity
    return (
        kind if kind == "none" else f"{kind} {config.structure}",
        f"{result.error:.2%}",
        f"{low:.2%} – {high:.2%}",
        f"{counts.total:,}",
        f"{counts.deployed:,}",
        f"{1000 * statistics.median(times):.1f}" if times else "–",
    )


def _last_evaluation(run: Run) -> Evaluation:
    lines = [line for line in run.metrics() if line["kind"] == "eval"]
    if not lines or not lines[-1].get("images") or lines[-1].get("loss") is None:
        raise RunError(
            f"{run.folder}: expected an evaluation with images and loss at the end of "
            f"metrics.jsonl, got none."
        )
    images = lines[-1]["images"]
    return Evaluation(round(lines[-1]["error"] * images), images, lines[-1]["loss"])


def _note(run: Run) -> str:
    is_validation = _evaluated_on(run) == "validation"
    kind = "training images that were held out" if is_validation else "test images"
    return f"Evaluated on {_last_evaluation(run).images:,} {kind}. {_NOTE}"


def _setup(run: Run) -> list[Section]:
    settings = {name: value for name, value in run.config.to_dict().items() if value is not None}
    environment = {k: v for k, v in run.environment().items() if k != "classes"}
    return [
        Section("Settings", [Facts(settings, verbatim=True)]),
        Section("Environment", [Facts(environment)]),
    ]


def _title(run: Run) -> str:
    config = run.config
    kind = "" if config.similarity == "none" else f", {config.similarity} {config.structure}"
    return f"{config.model} on {config.data}{kind}, seed {config.seed}"
