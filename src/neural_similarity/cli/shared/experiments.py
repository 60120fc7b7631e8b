"""The experiments of a clone, for ``nsl reproduce``.

The package does not contain the experiments, so the library never imports them by name. They are
loaded when a command needs them, from the clone that the library itself is in, and reached through
:class:`Experiments`.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, cast

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
    """The folder that the library would have been cloned into."""
    import neural_similarity

    return Path(neural_similarity.__file__).resolve().parents[2]


def load_experiments() -> Experiments:
    """The experiments of the clone that the library is in, and no others."""
    from ...errors import RunError

    root = clone_folder()
    folder = root / "experiments"
    if not (folder / "reproduce.py").is_file():
        raise RunError(
            f"nsl reproduce: expected a clone of the repository around the library, got none in "
            f"{root}. The package does not contain the experiments. Clone the repository, install "
            f"it with pip install -e '.[all]', and run this again."
        )
    if str(root) not in sys.path:
        sys.path.append(str(root))  # last, so that nothing in the clone hides another module
    spec = importlib.util.find_spec("experiments")
    places = [] if spec is None else list(map(Path, spec.submodule_search_locations or ()))
    if [place.resolve() for place in places] != [folder]:
        raise RunError(
            f"nsl reproduce: expected the experiments in {folder}, got another module of that name "
            f"({', '.join(map(str, places)) or 'a single file'}). It hides ours. Run this from "
            f"another folder, or remove it from PYTHONPATH."
        )
    return cast(Experiments, importlib.import_module("experiments.reproduce"))
