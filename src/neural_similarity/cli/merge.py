"""``nsl merge``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ._options import DataDir, Force, RunFolder, Which

__all__ = ["merge"]


def merge(
    run: RunFolder,
    which: Which = "last",
    out: Annotated[
        Path | None, typer.Option(help="The file (default: merged.safetensors in the run).")
    ] = None,
    data_dir: DataDir = None,
    force: Force = False,
) -> None:
    """Write a run's static similarities into its kernels: the weights of a plain network.

    The file loads into the stock network, without this library's layers. On test images both
    must give the same scores before anything is written.

    \b
    nsl merge runs/static
    nsl merge runs/static --which best --out plain.safetensors
    """
    import copy

    import torch

    from .. import convert
    from ..errors import MergeError, RunError
    from ..train import Run
    from ..train.checkpoint import write_weights

    opened = Run.open(run, data_dir)
    target = opened.folder / "merged.safetensors" if out is None else out
    if target.exists() and not force:
        raise RunError(f"{target}: expected a new file, got one that is there. Use --force.")
    if opened.config.similarity_kind() == "none":
        raise MergeError(
            f"{run}: expected a run with a static similarity, got one without. Its weights are "
            f"plain already, in {which}.safetensors; `nsl train --similarity static` trains one to "
            f"merge."
        )
    model = opened.load_model(which)
    counted = convert.trainable_summary(model)
    merged = convert.merge(copy.deepcopy(model))
    images = opened.example()
    with torch.no_grad():
        before, after = model(images), merged(images)
    difference = ((after - before).abs().max() / before.abs().max()).item()
    # Each layer was checked to 1e-5; that rounding may grow through the layers of a network.
    if not difference <= 1e-3:
        raise MergeError(
            f"merge: expected the same scores on test images, got a relative difference of "
            f"{difference:.1e}. Nothing was written."
        )
    known = opened.environment()
    write_weights(
        target,
        merged,
        {
            "model": opened.config.model,
            "options": opened.config.options,
            **{name: known[name] for name in ("classes", "in_channels", "image_size")},
            **{name: known[name] for name in ("mean", "std")},
        },
    )
    print(
        f"{target}: {counted.deployed:,} parameters, {counted.total:,} before; scores differ by "
        f"{difference:.1e} of the largest"
    )
