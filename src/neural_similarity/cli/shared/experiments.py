"""The experiments of a clone, for ``nsl reproduce``.

The package does not contain the experiments, so the library never imports them by name. They are
loaded when a command needs them, from the clone that contains the library, and accessed through
:class:`Experiments`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, cast

from .one_module import one_module

__all__ = ["Experiments", "clone_folder", "load_experiments"]


class Experiments(Protocol):
    """The functions of ``experiments.reproduce`` that the command calls."""

    RESULTS: Path

    def table_names(self) -> list[str]: ...

    def list_tables(self, budget: str, seeds: int, results: Path) -> Iterator[str]: ...

    def run(
        self,
        tables: Sequence[str],
        budget: str,
        seeds: int,
        rows: Sequence[str],
        *,
        work: Path,
        results: Path,
        data_dir: Path | None,
        log: Callable[[str], None],
        callback: Callable[[str], Callable[[dict[str, Any]], None]],
        test_callback: Callable[[str, int, int], None],
    ) -> None: ...

    def report(
        self,
        budget: str,
        *,
        out: Path | None,
        page: Path | None,
        readme: Path | None,
        results: Path,
        check: bool,
    ) -> list[Path]: ...


def clone_folder() -> Path:
    """The root of the clone, if the library is in one."""
    import neural_similarity

    return Path(neural_similarity.__file__).resolve().parents[2]


def load_experiments() -> Experiments:
    """The experiments of the clone that contains the library, and no others."""
    import neural_similarity

    from ...errors import RunError

    root = clone_folder()
    folder = root / "experiments"
    # In a clone the library is in src; elsewhere the folder above may belong to anyone.
    is_clone = Path(neural_similarity.__file__).resolve().parents[1] == root / "src"
    if not (is_clone and (folder / "reproduce.py").is_file()):
        raise RunError(
            f"nsl reproduce: expected the library to be in a clone of the repository, got none in "
            f"{root}. The package does not contain the experiments. Clone the repository, install "
            f"it with pip install -e '.[all]', and run this again."
        )
    with one_module(root, "experiments", first=True):
        package = importlib.import_module("experiments")
        places = [Path(place).resolve() for place in package.__path__]
        if places != [folder]:  # it was already imported from elsewhere
            raise RunError(
                f"nsl reproduce: expected the experiments in {folder}, got another module with "
                f"that name ({', '.join(map(str, places))}). It hides the experiments. Run this in "
                f"a separate process."
            )
        return cast(Experiments, importlib.import_module("experiments.reproduce"))
