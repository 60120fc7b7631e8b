"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["DataDir", "Force", "RunFolder", "Which"]

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a training run.")]
Which = Annotated[str, typer.Option(help="Which weights: last, or best in evaluation.")]
Force = Annotated[bool, typer.Option("--force", help="Replace what is there.")]
DataDir = Annotated[
    Path | None,
    typer.Option(
        envvar="NEURAL_SIMILARITY_DATA", help="Where data sets are kept (default: ./data)."
    ),
]
