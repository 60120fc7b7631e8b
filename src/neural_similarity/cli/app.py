"""The list of commands."""

from __future__ import annotations

from typing import Annotated

import typer

from .adapt import adapt
from .data import app as data
from .eval import evaluate
from .export import export
from .fewshot import app as fewshot
from .inspect import inspect
from .merge import merge
from .predict import predict
from .reproduce import app as reproduce
from .shared.printing import print_line
from .teach import teach
from .train import train

__all__ = ["app"]

app = typer.Typer(
    name="nsl",
    help="Neural similarity learning: train, adapt and export networks whose convolutions learn "
    "a similarity matrix M between kernel and patch.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(value: bool) -> None:
    if value:
        from .. import __version__

        print_line(f"neural-similarity {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


app.command()(train)
app.command("eval")(evaluate)
app.command()(adapt)
app.command()(predict)
app.command()(teach)
app.command()(merge)
app.command()(export)
app.command()(inspect)
app.add_typer(fewshot, name="fewshot")
app.add_typer(data, name="data")
app.add_typer(reproduce, name="reproduce")
