"""``nsl inspect``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .shared.options import DataDir, Force, RunFolder
from .shared.printing import print_line

if TYPE_CHECKING:
    from ..convert import LayerSummary, TrainableSummary

__all__ = ["inspect"]

_HEAD = (
    "layer", "kind", "kernel", "similarity", "parameters of M", "parameters", "multiply-adds",
    "distance",
)  # fmt: skip
_NOTE = (
    "Parameters of M are the parameters that the similarity learns; for a dynamic layer, those of "
    "its predictor. Multiply-adds are counted for one image and include predictors. The distance "
    "is the distance of M from the identity, ‖M − I‖ / ‖I‖; for a dynamic layer, it is computed "
    "over a few of the images that it was evaluated on."
)


def inspect(
    run: RunFolder,
    which: Annotated[
        str | None,
        typer.Option(
            help="Which weights: last or best (default: last; of a few-shot run, those it tests).",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the plots and the report (default: RUN/inspect)."),
    ] = None,
    data_dir: DataDir = None,
    force: Force = False,
) -> None:
    """Show what the similarities of a run have learned.

    Prints, for every layer, its parameters, its multiply-adds and how far its M is from the
    identity. Writes a report with heat maps: the learned M of static layers, and the M that dynamic
    layers predict for a test image. Of a few-shot run, it shows the network that computes features.

    \b
    Examples:
      nsl inspect runs/static
      nsl inspect runs/dynamic --which best --out birds
      nsl inspect runs/fewshot/meta_static
    """
    from .._io import foreign_entries
    from ..convert import describe_layers, trainable_summary
    from ..errors import RunError
    from ..fewshot import open_run
    from ..plot import Facts, Section, Table, Text, write_report
    from .shared.table import print_table

    opened_run = open_run(run, data_dir)
    folder = opened_run.folder / "inspect" if out is None else out
    if folder.exists() and not folder.is_dir():
        raise RunError(f"{folder}: expected a folder, got a file. Choose another --out.")
    if folder.is_dir() and foreign_entries(folder) and not force:
        raise RunError(
            f"{folder}: expected a new or empty folder, got one with files. Choose another --out, "
            f"or overwrite its files with --force."
        )
    which = which or opened_run.chosen()
    model, images = opened_run.load_model(which), opened_run.example()
    layers, counts = describe_layers(model, images), trainable_summary(model)
    rows, totals = _rows(layers, counts), _totals(layers, counts)
    folder.mkdir(parents=True, exist_ok=True)
    sections = [
        Section("Layers", [Table(_HEAD, rows), Text(_NOTE)]),
        Section("Totals", [Facts(totals)]),
        *_pictures(model, images[0], folder),
        Section("Settings", [Facts(_non_empty(opened_run.config.to_dict()), verbatim=True)]),
    ]
    config = opened_run.config
    report = folder / "report.html"
    write_report(report, f"{config.model} on {config.data}, {which} weights", sections)
    print_table(_HEAD, rows)
    for name, value in totals.items():
        print_line(f"{name}: {value:,}")
    print_line(f"report: {report}")


def _rows(layers: Sequence[LayerSummary], counts: TrainableSummary) -> list[tuple[Any, ...]]:
    """One row per layer, and one for the parameters of all other modules."""
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
    rest = counts.total - sum(layer.parameters for layer in layers)
    if rest:
        rows.append(("normalisation and others", "–", "–", "–", "–", rest, "–", "–"))
    return rows


def _totals(layers: Sequence[LayerSummary], counts: TrainableSummary) -> dict[str, int]:
    return {
        "parameters during training": counts.total,
        "of these, similarity": counts.similarity,
        "parameters when deployed": counts.deployed,
        "multiply-adds for one image": sum(layer.multiply_adds for layer in layers),
    }


def _pictures(model: Any, image: Any, folder: Path) -> list[Any]:
    """One section of plots for each kind of similarity in the model."""
    from ..nn.dynamic import PredictedSimilarity
    from ..nn.inventory import named_similarities
    from ..nn.static import SimilarityParametrization
    from ..plot import Picture, Section, draw_dynamic, draw_static

    kinds = [type(similarity) for _, similarity in named_similarities(model)]
    sections = []
    if SimilarityParametrization in kinds:
        draw_static(model, folder / "static.png")
        caption = "M of every static layer. White means: as in a plain convolution."
        sections.append(Section("Learned M", [Picture(folder / "static.png", caption)]))
    if PredictedSimilarity in kinds:
        draw_dynamic(model, image, folder / "dynamic.png")
        caption = "The M that every dynamic layer predicts for the first image of its evaluation."
        sections.append(Section("Predicted M", [Picture(folder / "dynamic.png", caption)]))
    return sections


def _non_empty(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if value not in (None, {})}
