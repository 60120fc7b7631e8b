"""The page of results, ``docs/adapt-results.md``, and its picture."""

from __future__ import annotations

from pathlib import Path
from statistics import median

from ..intervals import Estimate
from ..markdown import paragraph, table
from ..records import write_text
from .cells import HEADS, Cell, Study, read_studies
from .compare import reference_names
from .picture import draw_shots

__all__ = ["page_text", "write_page"]

_DOCS = Path(__file__).parents[2] / "docs"
_PICTURE = "pictures/adapt-shots.png"
_START = """
Measured by `python -m experiments.adapt`; every number below comes from its files. A task consists
of some classes and some images of each. A classifier is trained on these and tested on other images
of the classes. All methods get the same tasks. Numbers are percentages, with the 95 % interval of
the mean over tasks. The tasks of a pool share its photographs (400 of birds, 400 of cars, 1,200 of
mini-ImageNet), so an interval describes further tasks from the same pool, and is too narrow for
other photographs: on 400 new ones, chance alone moves an accuracy by two to four points.

The networks were pretrained on ImageNet. mini-ImageNet is a subset of it, and some of the bird
species and types of car are among its classes. So all accuracies are higher than on things that the
network has never seen. The tables only show which method is better on the same features. The prior
of `laplace` is made of the network's classifier rows for ImageNet's classes, including those of
mini-ImageNet, so its lead there would not carry over to new classes.

Settings were chosen on other classes: ten other birds, and the validation classes of mini-ImageNet.
Cars are an exception: five of the ten classes were also used to choose settings.

`auto` is what `nsl adapt` does without `--method`. Four rows are the usual finetuning, by gradient
descent: "head-only" trains the classifier alone; "BatchNorm" also the gains and biases of BatchNorm
in the last two blocks; "LoRA" also low-rank changes of their 1×1 convolutions; "last blocks" also
all weights of these blocks. The method `blocks` is "last blocks" at the learning rate chosen for
ten ways and ten images. "scikit-learn" is its logistic
regression on the features of the same network, as in a ten-line script. Whatever is tuned, the
result is one plain network: the ONNX file of an adapted `efficientnet_lite0` is 13.8 MB, and
onnxruntime takes about 16 ms per image on two cores (`python -m benchmarks adapted`).
"""


def write_page(results: Path, docs: Path = _DOCS) -> list[Path]:
    """Write page and picture from the files in a folder."""
    studies = read_studies(results)
    page, picture = docs / "adapt-results.md", docs / _PICTURE
    draw_shots(studies, picture)
    write_text(page, page_text(studies))
    return [page, picture]


def page_text(studies: list[Study]) -> str:
    parts = ["# Which way to adapt is best?", *map(paragraph, _START.split("\n\n"))]
    parts += [
        f"![Ways to adapt compared with linear]({_PICTURE})",
        f"The picture shows `{studies[0].backbone}`; all numbers are in the tables.",
        _verdict(studies),
    ]
    for study in studies:
        name = f"{study.pool[0].upper()}{study.pool[1:]}"
        parts.append(f"## {name}, {study.backbone}, {study.image_size} pixels\n")
        parts.append(_accuracies(study))
        parts += [_costs(cell) for cell in study.cells.values() if cell.tuned]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _verdict(studies: list[Study]) -> str:
    """Where the automatic choice is furthest below the best head, and how static compares."""
    cells = [(study, cell) for study in studies for cell in study.cells.values()]
    behind = [(cell.difference("auto", cell.best_head()), study, cell) for study, cell in cells]
    gap, study, cell = min(behind, key=lambda entry: entry[0].mean)
    _, below = _separated([difference for difference, *_ in behind])
    text = (
        f"We compared `auto` with the method that turned out best in {len(behind)} cases. It is "
        f"furthest from it on {study.pool} ({study.backbone}, {study.image_size} pixels), with "
        f"{cell.n_way} ways and {cell.n_shot} image{'s' * (cell.n_shot > 1)} per class: "
        f"{gap.mean:+.1f} ± {_half(gap):.1f} points from `{cell.best_head()}`. In {below} of "
        f"{len(behind)} cases, `auto` is below by more than the interval of the difference. The "
        f"best method was chosen on the same tasks, which widens the gap."
    )
    all_cells = [cell for _, cell in cells]
    texts = (text, _beside_scikit_learn(all_cells), _tuned_beside_linear(all_cells))
    return "\n\n".join(paragraph(one) for one in texts if one)


def _beside_scikit_learn(cells: list[Cell]) -> str:
    """How often the automatic choice is better or worse than ten lines of code."""
    differences = [
        cell.difference("auto", name)
        for cell in cells
        for name in reference_names()
        if name in cell.accuracies
    ]
    if not differences:
        return ""
    better, worse = _separated(differences)
    lowest = min(difference.mean for difference in differences)
    return (
        f"Compared with scikit-learn's two regressions on the same tasks, `auto` is better by more "
        f"than the interval of the difference in {better} of {len(differences)} cases, and worse "
        f"in {worse}; the lowest difference is {lowest:+.1f} points. The cases share photographs "
        f"and are not independent."
    )


def _separated(differences: list[Estimate]) -> tuple[int, int]:
    """How many are above zero, and below it, by more than their interval."""
    better = sum(d.low is not None and d.low > 0 for d in differences)
    return better, sum(d.high is not None and d.high < 0 for d in differences)


def _tuned_beside_linear(cells: list[Cell]) -> str:
    """How often ``static`` and finetuning are better or worse than ``linear``."""
    differences = [cell.difference(name, "linear") for cell in cells for name in cell.tuned]
    if not differences:
        return ""
    better, worse = _separated(differences)
    return (
        f"`static` and finetuning were compared with `linear` {len(differences)} times. They were "
        f"worse by more than the interval {worse} times, and better {better} times."
    )


def _accuracies(study: Study) -> str:
    head = ["method", *(f"{c.n_way} ways, {c.n_shot}" for c in study.cells.values())]
    names = study.methods()
    order = [n for n in ("auto", *HEADS) if n in names]
    order += [n for n in names if n not in order]
    rows = [[_name(n), *(_plus_minus(c.accuracy(n)) for c in study.cells.values())] for n in order]
    counts = sorted({len(cell.accuracies["auto"]) for cell in study.cells.values()})
    tasks = " or ".join(map(str, counts))
    return (
        f"Columns: number of ways, training images per class; {tasks} tasks per column.\n\n"
        f"{table(head, rows)}"
    )


def _costs(cell: Cell) -> str:
    """Ways that tune the network, compared with ``linear`` on the same tasks."""
    rows = []
    for name in ["linear", *sorted(cell.tuned, key=lambda name: name != "static")]:
        difference = "" if name == "linear" else _plus_minus(cell.difference(name, "linear"))
        rows.append(
            [_name(name), str(len(cell.accuracies[name])), _plus_minus(cell.accuracy(name)),
             difference, f"{cell.parameters[name]:,}", f"{median(cell.seconds[name]):.1f}"]
        )  # fmt: skip
    head = ["method", "tasks", "accuracy", "minus `linear`, same tasks", "parameters learned",
            "seconds per task"]  # fmt: skip
    return (
        f"Tuning the last layers, {cell.n_way} ways and {cell.n_shot} images per class. Seconds "
        f"are for one thread on a busy machine (median over groups of tasks), without the frozen "
        f"layers below.\n\n{table(head, rows)}"
    )


def _name(method: str) -> str:
    return f"`{method}`" if method in ("auto", "static", *HEADS) else method


def _half(estimate: Estimate) -> float:
    return 0.0 if estimate.high is None else estimate.high - estimate.mean


def _plus_minus(estimate: Estimate) -> str:
    return f"{estimate.mean:.1f} ± {_half(estimate):.1f}"
