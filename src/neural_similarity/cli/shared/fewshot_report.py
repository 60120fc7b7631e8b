"""The results of few-shot methods as a table, plots and a report."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...fewshot import FewShotRun
from ...plot import Facts, Picture, Section, Table, Text, draw_methods, draw_run, write_report
from .printing import print_line
from .table import print_table

__all__ = ["report_methods", "show_results", "training_line"]

Results = Mapping[str, Sequence[Mapping[str, Any]]]

_NOTE = (
    "Accuracy on episodes of classes that no method was trained on. The interval is 1.96 standard "
    "errors over episodes; it does not cover other seeds. Weights are the best on episodes of "
    "validation classes, or the last if there was no validation. Inductive: every query is "
    "classified independently. Transductive: queries of an episode influence each other, through "
    "BatchNorm or because the method looks at all of them; such methods profit from episodes with "
    "equally many queries of every class, as these are. Adapted parameters are those fitted to the "
    "support set of an episode. A plain network that several methods start with is trained once."
)


def report_methods(runs: Mapping[str, FewShotRun], results: Results, folder: Path) -> None:
    """Print a table of all methods; write ``methods.png`` and ``report.html``."""
    config = next(iter(runs.values())).config
    title = f"Few-shot learning on {config.data}, {config.model}, seed {config.seed}"
    picture = folder / "methods.png"
    draw_methods(results, picture, title)
    head, rows = _table(runs, results)
    caption = "Accuracy and adapted parameters"
    sections = [Section("Result", [Table(head, rows), Picture(picture, caption), Text(_NOTE)])]
    for name, run in runs.items():
        sections.append(_section(name, run, results[name]))
    environment = next(iter(runs.values())).environment()
    facts = {name: value for name, value in environment.items() if name != "classes"}
    sections.append(Section("Environment", [Facts(facts)]))
    write_report(folder / "report.html", title, sections)
    print_table(head, rows)
    print_line(f"plot: {picture}")
    print_line(f"report: {folder / 'report.html'}")


def show_results(results: Sequence[Mapping[str, Any]]) -> None:
    """Print one line per test."""
    for result in results:
        print_line(
            f"{result['method']} {result['n_way']}-way {result['n_shot']}-shot: accuracy "
            f"{_accuracy(result)}% over {result['episodes']:,} episodes, {result['inference']}, "
            f"{result['adapted']:,} adapted parameters, {result['weights']} weights, "
            f"{result['seconds']:.1f} s, {result['episodes_per_second']:.3g} episodes a second"
        )


def training_line(run: FewShotRun) -> None:
    """Print the best validation accuracy, if there was one."""
    evaluations = [line for line in run.metrics() if line["kind"] == "eval"]
    if evaluations:
        best = min(evaluations, key=lambda line: line["error"])
        print_line(
            f"{run.config.method}: validation accuracy {100 * (1 - best['error']):.2f} ± "
            f"{100 * best.get('interval', math.nan):.2f}% at step {best['step']:,}, the best of "
            f"{len(evaluations)}"
        )
    else:
        print_line(f"{run.config.method}: no validation; tests use the last weights")


def _table(
    runs: Mapping[str, FewShotRun], results: Results
) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
    shots = sorted({result["n_shot"] for of in results.values() for result in of})
    head = (
        "method", *(f"{n_shot}-shot" for n_shot in shots), "adapted parameters", "inference",
        "episodes", "training s", "test s",
    )  # fmt: skip
    rows = []
    for name, of in results.items():
        by_shot = {result["n_shot"]: result for result in of}
        first = of[0]
        rows.append(
            (
                name,
                *(_accuracy(by_shot[n_shot]) if n_shot in by_shot else "–" for n_shot in shots),
                first["adapted"],
                first["inference"],
                first["episodes"],
                f"{_training_seconds(runs[name]):.1f}",
                f"{sum(result['seconds'] for result in of):.1f}",
            )
        )
    return head, rows


def _section(name: str, run: FewShotRun, results: Sequence[Mapping[str, Any]]) -> Section:
    parts: list[Any] = []
    if run.metrics():
        picture = run.folder / "curves.png"
        draw_run(run.metrics(), picture, f"{name}, seed {run.config.seed}", "validation")
        parts.append(Picture(picture, "Loss, validation error and learning rate"))
    fingerprints = {f"{r['n_shot']}-shot episodes, fingerprint": r["fingerprint"] for r in results}
    settings = {k: v for k, v in run.config.to_dict().items() if v not in (None, {})}
    return Section(name, [*parts, Facts(fingerprints), Facts(settings, verbatim=True)])


def _training_seconds(run: FewShotRun) -> float:
    """Seconds of this run and of those whose networks it started with."""
    lines = run.metrics()
    own = lines[-1].get("seconds", 0.0) if lines else 0.0
    backbone = run.config.backbone
    if backbone is not None and (Path(backbone) / "config.json").is_file():
        own += _training_seconds(FewShotRun.open(backbone))
    return float(own)


def _accuracy(result: Mapping[str, Any]) -> str:
    return f"{100 * result['mean']:.2f} ± {100 * result['interval']:.2f}"
