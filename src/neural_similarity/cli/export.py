"""``nsl export``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from .shared.options import DataDir, Force, RunFolder, Which
from .shared.printing import print_line

__all__ = ["export"]


def export(
    run: RunFolder,
    format: Annotated[
        str, typer.Option(help="onnx (for onnxruntime and others) or torch-export (for PyTorch).")
    ] = "onnx",
    which: Which = "last",
    out: Annotated[
        Path | None, typer.Option(help="File to write (default: RUN/model.onnx or RUN/model.pt2).")
    ] = None,
    data_dir: DataDir = None,
    force: Force = False,
) -> None:
    """Export a run's network to ONNX or torch.export.

    Static similarities are merged first; dynamic ones stay. The exported network takes batches of
    any size; classes and normalisation are stored as metadata. The file is written only if it
    reproduces the network's scores on test images.

    \b
    Examples:
      nsl export runs/static
      nsl export runs/dynamic --format torch-export --which best --out birds.pt2
    """
    from .. import _check
    from ..convert import trainable_summary
    from ..export import FORMATS, export_model
    from ..train import Run

    _check.known_name("export", "--format", format, FORMATS)
    opened_run = Run.open(run, data_dir)
    target = opened_run.folder / f"model{FORMATS[format]}" if out is None else out
    model = opened_run.load_model(which)
    images = opened_run.example()
    mean, std = opened_run.normalisation()
    metadata = {
        "classes": list(opened_run.classes()),
        "input_size": list(images.shape[1:]),
        "mean": list(mean),
        "std": list(std),
        "crop": opened_run.shown_share(),
        "interpolation": "bilinear",
        "model": opened_run.config.model,
    }
    difference = export_model(
        model,
        images,
        target,
        format,
        force=force,
        metadata={name: json.dumps(value) for name, value in metadata.items()},
    )
    print_line(
        f"{target}: {format}, {target.stat().st_size:,} bytes, "
        f"{trainable_summary(model).deployed:,} parameters; relative difference of the scores "
        f"{difference:.1e}"
    )
