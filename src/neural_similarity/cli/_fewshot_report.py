"""What tests of few-shot methods come to: a table, pictures, a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..fewshot import FewShotRun
from ..plot import Facts, Picture, Section, Table, Text, draw_methods, draw_run, write_report
from ._table import print_table

__all__ = ["report_methods", "show_results", "training_line"]

Results = Mapping[str, Sequence[Mapping[str, Any]]]

_NOTE = (
    "Accuracy on episodes of classes that nothing was trained on; the interval is 1.96 standard "
    "errors over episodes, and says nothing of other seeds. Weights are the best in episodes of "
    "validation classes, or the last where nothing validated. Inductive: a query is classified on "
    "its own; transductive: queries of an episode tell of each other through BatchNorm. Numbers "
    "adapted are those fitted to the support set of an episode. Plain networks that several "
    "methods begin with are trained once."
)


def report_methods(runs: Mapping[str, FewShotRun], results: Results, folder: Path) -> None:
    """Print methods side by side; write ``methods.png`` and ``report.html``."""
    config = next(iter(runs.values())).config
    title = f"Few-shot learning on {config.data}, {config.model}, seed {config.seed}"
    picture = folder / "methods.png"
    draw_methods(results, picture, title)
    head, rows = _table(runs, results)
    caption = "Accuracy, and how much is adapted for it"
    sections = [Section("Result", [Table(head, rows), Picture(picture, caption), Text(_NOTE)])]
    for name, run in runs.items():
        sections.append(_section(name, run, results[name]))
    where = {k: v for k, v in next(iter(runs.values())).environment().items() if k != "classes"}
    sections.append(Section("Environment", [Facts(where)]))
    write_report(folder / "report.html", title, sections)
    print_table(head, rows)
    print(f"plot: {picture}\nreport: {folder / 'report.html'}")


def show_results(results: Sequence[Mapping[str, Any]]) -> None:
    """One line a test."""
    for result in results:
        print(
            f"{result['method']} {result['n_way']}-way {result['n_shot']}-shot: accuracy "
            f"{_accuracy(result)} % over {result['episodes']:,} episodes, {result['inference']}, "
            f"{result['adapted']:,} numbers adapted, {result['weights']} weights, "
            f"{result['seconds']:.1f} s"
        )


def training_line(run: FewShotRun) -> None:
    """What validation said last, if it did."""
    found = [line for line in run.metrics() if line["kind"] == "eval"]
    if found:
        best = min(found, key=lambda line: line["error"])
        print(
            f"{run.config.method}: validation accuracy {100 * (1 - best['error']):.2f} ± "
            f"{100 * best['interval']:.2f} % at step {best['step']:,}, the best of {len(found)}"
        )
    else:
        print(f"{run.config.method}: nothing validated; the last weights count")


def _table(
    runs: Mapping[str, FewShotRun], results: Results
) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
    shots = sorted({result["n_shot"] for of in results.values() for result in of})
    head = (
        "method", *(f"{n_shot}-shot" for n_shot in shots), "numbers adapted", "inference",
        "episodes", "training s", "test s",
    )  # fmt: skip
    rows = []
    for name, of in results.items():
        found = {result["n_shot"]: result for result in of}
        first = of[0]
        rows.append(
            (
                name,
                *(_accuracy(found[n_shot]) if n_shot in found else "–" for n_shot in shots),
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
        parts.append(Picture(picture, "Loss, validation error and rate"))
    asked = {f"episodes of {r['n_shot']} shot(s)": r["fingerprint"] for r in results}
    settings = {k: v for k, v in run.config.to_dict().items() if v not in (None, {})}
    return Section(name, [*parts, Facts(asked), Facts(settings)])


def _training_seconds(run: FewShotRun) -> float:
    """Of this run and of what it began with."""
    lines = run.metrics()
    own = lines[-1]["seconds"] if lines else 0.0
    backbone = run.config.backbone
    if backbone is not None and (Path(backbone) / "config.json").is_file():
        own += _training_seconds(FewShotRun.open(backbone))
    return float(own)


def _accuracy(result: Mapping[str, Any]) -> str:
    return f"{100 * result['mean']:.2f} ± {100 * result['interval']:.2f}"
