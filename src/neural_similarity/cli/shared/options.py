"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["RESUME", "BackboneSpec", "DataDir", "Force", "RunFolder", "Which"]

RESUME = "Continue the run in --out. With settings: start it if there is none."

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a training run.")]
Which = Annotated[
    str, typer.Option(help="Which weights: last, or best (lowest error in evaluation).")
]
Force = Annotated[bool, typer.Option("--force", help="Overwrite existing output.")]
BackboneSpec = Annotated[
    str | None,
    typer.Option(
        metavar="SPEC",
        help="A name such as efficientnet_lite2, the folder of a run, a backbone file, "
        "timm:NAME or module:function (default: the best that is installed).",
        show_default=False,
    ),
]
DataDir = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Folder of the data sets. Default: $NEURAL_SIMILARITY_DATA, or ./data.",
        show_default=False,
    ),
]
