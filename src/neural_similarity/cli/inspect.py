"""``nsl inspect``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ._options import DataDir, Force, RunFolder, Which

if TYPE_CHECKING:
    from ..convert import LayerSummary, TrainableSummary

__all__ = ["inspect"]

_HEAD = (
    "layer", "kind", "kernel", "similarity", "numbers of M", "parameters", "multiply-adds",
    "distance",
)  # fmt: skip
_NOTE = (
    "Numbers of M are the parameters behind the similarity; of a dynamic layer, its predictor's. "
    "Multiply-adds are those of one image, predictors included. The distance is that of M from "
    "the identity, ‖M − I‖ / ‖I‖; of a dynamic layer, over some test images."
)


def inspect(
    run: RunFolder,
    which: Which = "last",
    out: Annotated[
        Path | None, typer.Option(help="Folder for pictures and report (default: RUN/inspect).")
    ] = None,
    data_dir: DataDir = None,
    force: Force = False,
) -> None:
    """Show what a run has learned: layer by layer, and as pictures of M.

    Prints parameters, multiply-adds and how far each M is from the identity. Writes a report with
    the learned M of static layers as heat maps, with kernel shapes, and for dynamic layers the M
    they predict over a test image.

    \b
    nsl inspect runs/static
    nsl inspect runs/dynamic --which best --out birds
    """
    from ..convert import describe_layers, trainable_summary
    from ..errors import RunError
    from ..plot import Facts, Section, Table, Text, write_report
    from ..train import Run
    from ._table import print_table

    opened = Run.open(run, data_dir)
    folder = opened.folder / "inspect" if out is None else out
    if folder.exists() and not (folder.is_dir() and (force or not any(folder.iterdir()))):
        raise RunError(
            f"{folder}: expected a new folder, got one that is there. Choose another --out, or "
            f"write over what is in it with --force."
        )
    model, images = opened.load_model(which), opened.example()
    layers, counted = describe_layers(model, images), trainable_summary(model)
    rows, totals = _rows(layers, counted), _totals(layers, counted)
    folder.mkdir(parents=True, exist_ok=True)
    sections = [
        Section("Layers", [Table(_HEAD, rows), Text(_NOTE)]),
        Section("In all", [Facts(totals)]),
        *_pictures(model, images[0], folder),
        Section("Settings", [Facts(_given(opened.config.to_dict()))]),
    ]
    config = opened.config
    report = folder / "report.html"
    write_report(report, f"{config.model} on {config.data}, {which} weights", sections)
    print_table(_HEAD, rows)
    for name, value in totals.items():
        print(f"{name}: {value:,}")
    print(f"report: {report}")


def _rows(layers: Sequence[LayerSummary], counted: TrainableSummary) -> list[tuple[Any, ...]]:
    """A row a layer, and one for what belongs to none of them."""
    rows: list[tuple[Any, ...]] = [
        (
            layer.name or "model",
            layer.kind,
            layer.kernel or "–",
            layer.similarity or "–",
            layer.similarity_numbers or "–",
            layer.parameters,
            layer.multiply_adds,
            "–" if layer.distance is None else f"{layer.distance:.3f}",
        )
        for layer in layers
    ]
    rest = counted.total - sum(layer.parameters for layer in layers)
    if rest:
        rows.append(("normalisation and others", "–", "–", "–", "–", rest, "–", "–"))
    return rows


def _totals(layers: Sequence[LayerSummary], counted: TrainableSummary) -> dict[str, int]:
    return {
        "parameters while training": counted.total,
        "of them similarity": counted.similarity,
        "parameters deployed": counted.deployed,
        "multiply-adds for one image": sum(layer.multiply_adds for layer in layers),
    }


def _pictures(model: Any, image: Any, folder: Path) -> list[Any]:
    """Sections with pictures of whatever kinds of similarity there are."""
    from ..nn.inventory import named_similarities
    from ..nn.predicted import PredictedSimilarity
    from ..nn.static import SimilarityParametrization
    from ..plot import Picture, Section, draw_dynamic, draw_static

    kinds = [type(similarity) for _, similarity in named_similarities(model)]
    sections = []
    if SimilarityParametrization in kinds:
        draw_static(model, folder / "static.png")
        caption = "M of every static layer; white is a plain convolution."
        sections.append(Section("Learned M", [Picture(folder / "static.png", caption)]))
    if PredictedSimilarity in kinds:
        draw_dynamic(model, image, folder / "dynamic.png")
        caption = "M of every dynamic layer over the first test image."
        sections.append(Section("Predicted M", [Picture(folder / "dynamic.png", caption)]))
    return sections


def _given(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if value not in (None, {})}
