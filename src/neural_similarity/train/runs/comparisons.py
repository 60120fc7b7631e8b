"""A folder of several runs to compare, with the settings of each in ``comparison.json``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from ...errors import RunError
from ..settings import Settings, check_kind
from .folders import COMPARISON, read_runs, tidy
from .run_folder import begin, differing_settings

__all__ = ["check_comparison", "read_comparison", "write_comparison"]

_Config = TypeVar("_Config", bound=Settings)


def write_comparison(folder: Path, configs: Mapping[str, Settings], force: bool) -> None:
    """Start a folder of several runs to compare; the caller has locked it."""
    begin(folder, COMPARISON, {name: c.to_dict() for name, c in configs.items()}, force)


def read_comparison(folder: Path, kind: type[_Config]) -> dict[str, _Config] | None:
    """The runs to compare in a folder; None if it is not a comparison."""
    tidy(folder)
    file = folder / COMPARISON
    if not file.is_file():
        return None
    configs = read_runs(folder)
    for config in configs.values():
        check_kind(folder, "runs", {"kind": "train", **config}, kind.kind)
    return {name: kind.from_dict(config) for name, config in configs.items()}


def check_comparison(
    folder: Path, known: Mapping[str, Settings], wanted: Mapping[str, Settings]
) -> None:
    """Raise unless the compared runs can be resumed with these settings."""
    same = known.keys() == wanted.keys()
    if not same or any(differing_settings(known[name], wanted[name]) for name in known):
        raise RunError(
            f"{folder}: expected the settings the runs began with, got different ones. Leave them "
            f"out to continue, or choose another --out."
        )
