"""``nsl merge``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .shared.options import DataDir, Force, RunFolder, Which
from .shared.printing import print_line

__all__ = ["merge"]

_CHECKPOINTS = ("last.safetensors", "best.safetensors")


def merge(
    run: RunFolder,
    which: Which = "last",
    out: Annotated[
        Path | None, typer.Option(help="File to write (default: RUN/merged.safetensors).")
    ] = None,
    data_dir: DataDir = None,
    force: Force = False,
) -> None:
    """Merge a run's static similarities into its kernels.

    The file holds the weights of a plain network, which needs none of this library's layers. It is
    written only if both networks give the same scores on test images.

    \b
    Examples:
      nsl merge runs/static
      nsl merge runs/static --which best --out plain.safetensors
    """
    import copy

    import torch

    from .. import convert
    from ..errors import MergeError, RunError
    from ..train import Run
    from ..train.checkpoint import write_weights

    opened_run = Run.open(run, data_dir)
    target = opened_run.folder / "merged.safetensors" if out is None else out
    if target.exists() and not force:
        raise RunError(
            f"{target}: expected a new file, got one that exists. Overwrite it with --force."
        )
    if target.resolve().parent == opened_run.folder.resolve() and target.name in _CHECKPOINTS:
        raise RunError(
            f"{target}: expected another file than a checkpoint of the run, got {target.name}. Its "
            f"similarities would be lost. Choose another --out."
        )
    if opened_run.config.similarity_kind() == "none":
        raise MergeError(
            f"{run}: expected a run with a static similarity, got one without. There is nothing to "
            f"merge: {which}.safetensors already holds the weights of a plain network. "
            f"`nsl train --similarity static` trains a run that can be merged."
        )
    model = opened_run.load_model(which)
    counts = convert.trainable_summary(model)
    merged = convert.merge(copy.deepcopy(model))
    images = opened_run.example()
    with torch.no_grad():
        before, after = model(images), merged(images)
    difference = ((after - before).abs().max() / before.abs().max()).item()
    # merge checked each layer to 1e-5; this rounding may grow from layer to layer.
    if not difference <= 1e-3:
        raise MergeError(
            f"merge: expected the same scores on test images, got a relative difference of "
            f"{difference:.1e}. Nothing was written."
        )
    environment = opened_run.environment()
    write_weights(
        target,
        merged,
        {
            "model": opened_run.config.model,
            "options": opened_run.config.options,
            **{name: environment[name] for name in ("classes", "in_channels", "image_size")},
            **{name: environment[name] for name in ("mean", "std")},
        },
        "merge again",
    )
    print_line(
        f"{target}: {counts.deployed:,} parameters, {counts.total:,} before; relative difference "
        f"of the scores {difference:.1e}"
    )
