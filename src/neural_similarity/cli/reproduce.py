"""``nsl reproduce``: the paper's tables. The experiments are in the repository, not the package."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import typer

from ..errors import RunError

__all__ = ["reproduce"]


def reproduce(context: typer.Context) -> None:
    """Reproduce the paper's tables (in a clone of the repository).

    nsl reproduce list
    nsl reproduce table4 --budget short --seeds 3
    nsl reproduce report
    """
    here = [Path.cwd(), Path(__file__).parents[3]]
    root = next((path for path in here if (path / "experiments" / "reproduce.py").is_file()), None)
    if root is None:
        raise RunError(
            "nsl reproduce: expected a clone of the repository, got a folder without experiments. "
            "The package holds none. Clone the repository and run this there."
        )
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    app = importlib.import_module("experiments.reproduce").app
    app(context.args, prog_name="nsl reproduce")
