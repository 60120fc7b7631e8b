"""``nsl eval``."""

from __future__ import annotations

from typing import Annotated

import typer

from .shared.options import DataDir, RunFolder, Which
from .shared.printing import print_json, print_line

__all__ = ["evaluate"]


def evaluate(
    run: RunFolder,
    which: Which = "last",
    split: Annotated[
        str | None,
        typer.Option(
            help="test, or validation (training images held out). Default: test, if the data set "
            "has test images of the trained classes.",
            show_default=False,
        ),
    ] = None,
    data_dir: DataDir = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Evaluate a trained network on images it has not seen.

    By default this evaluates the last weights. The best weights were chosen by their error on the
    evaluation images, so on those same images their error is too optimistic.

    \b
    Examples:
      nsl eval runs/dynamic
      nsl eval runs/dynamic --which best --json
    """
    from ..data import eval_loader
    from ..train import Run
    from ..train import evaluate as run_evaluation
    from .shared.progress import progress_bar

    opened_run = Run.open(run, data_dir)
    model = opened_run.load_model(which)
    mean, std = opened_run.normalisation()
    test = opened_run.test_set(split)
    loader = eval_loader(test, opened_run.config.batch_size, mean=mean, std=std)
    with progress_bar() as bar:
        task = bar.add_task(f"{len(test):,} images", total=len(loader))
        result = run_evaluation(
            model, loader, callback=lambda done, _: bar.update(task, completed=done)
        )
    low, high = result.interval()
    if as_json:
        subject = {
            "run": str(run),
            "which": which,
            "data": opened_run.config.data,
            "fingerprint": test.fingerprint,
        }
        scores = {"error": result.error, "interval": [low, high], "loss": result.loss}
        if result.top5_error is not None:
            scores["top5_error"] = result.top5_error
        print_json({**subject, **scores, "errors": result.errors, "images": result.images})
    else:
        top5 = "" if result.top5_error is None else f", top-5 error {result.top5_error:.2%}"
        print_line(
            f"error {result.error:.2%} ({result.errors:,} of {result.images:,} images), "
            f"95% interval {low:.2%} – {high:.2%}, loss {result.loss:.4f}{top5}"
        )
