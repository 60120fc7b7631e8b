"""What is in the folder of a run, and what may be taken out of it: nothing but our own files."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

from .._io import foreign_entries
from .._json import read_json
from ..errors import RunError

__all__ = [
    "COMPARISON",
    "check_new",
    "check_replaceable",
    "clear",
    "read_object",
    "read_runs",
    "run_names",
]

COMPARISON = "comparison.json"
_MARKS = {"config.json", COMPARISON}  # one of them is in every folder of ours
_OUR_FILES = (
    r"(environment|comparison)\.json|metrics\.jsonl|(curves|comparison|methods)\.png|report\.html|"
    r"(last|last-\d+\.optimizer|best|merged)\.safetensors|model\.(onnx|pt2)"
)
_OUR_FOLDERS = {
    "inspect": r"report\.html|(static|dynamic)\.png",
    "results": r"\.?\d+way-\d+shot-.+\.(json|jsonl)",
    "tensorboard": r"events\.out\.tfevents\..+",
}


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file of a run."""
    return read_json(path, dict[str, Any], RunError)


def run_names(folder: Path) -> list[str]:
    """The names of the runs in a folder of several; none if it is not such a folder."""
    return list(read_runs(folder)) if (folder / COMPARISON).is_file() else []


def read_runs(folder: Path) -> dict[str, dict[str, Any]]:
    """The settings of the runs in a folder of several, by name."""
    file = folder / COMPARISON
    runs = read_json(file, dict[str, dict[str, Any]], RunError)
    for name in runs:
        if name in ("", ".", "..") or not Path(name).name == name or "\0" in name:
            raise RunError(f"{file}: expected names of folders, got {name!r}. The file is damaged.")
    return runs


def clear(folder: Path) -> None:
    """Empty a folder of runs; the folder itself stays, as it may be locked."""
    check_replaceable(folder)
    for path in sorted(folder.iterdir(), key=lambda path: path.name in _MARKS):  # these last
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def check_replaceable(folder: Path) -> None:
    """Raise unless a folder is new, or holds nothing but runs: nothing else is ever removed."""
    foreign = _foreign(folder) if folder.exists() else None
    if foreign is None and folder.is_dir():
        names = [path.name for path in foreign_entries(folder)]
        foreign = folder / names[0] if names and not set(names) & _MARKS else None
    if foreign is not None:
        raise RunError(
            f"{folder}: expected a run to replace, got something else ({foreign.name}). It is left "
            f"alone. Choose another --out."
        )


def _foreign(folder: Path) -> Path | None:
    """Something in a folder that no run writes; None if there is nothing."""
    if not folder.is_dir():
        return folder
    runs = run_names(folder)
    for path in foreign_entries(folder):
        if path.name in runs:
            inside = _foreign(path)
            if inside is not None:
                return inside
        elif not _is_ours(path):
            return path
    return None


def _is_ours(path: Path) -> bool:
    if path.name == "config.json":  # many programs have one
        return {"model", "data"} <= read_object(path).keys()
    if path.name in _OUR_FOLDERS and path.is_dir() and not path.is_symlink():
        ours = re.compile(_OUR_FOLDERS[path.name])
        return all(ours.fullmatch(file.name) and file.is_file() for file in foreign_entries(path))
    return bool(re.fullmatch(_OUR_FILES, path.name)) and not path.is_dir()


def check_new(folder: Path, resume: bool = False) -> None:
    """Raise unless a folder is new or empty; ``resume`` if a run was looked for there in vain."""
    if folder.exists() and (not folder.is_dir() or foreign_entries(folder)):
        if resume:
            raise RunError(
                f"{folder}: expected a run to resume, got a folder without config.json. Nothing "
                f"was changed. Choose another --out."
            )
        raise RunError(
            f"{folder}: expected a new folder, got one that exists. Continue with --resume, "
            f"overwrite it with --force, or choose another --out."
        )
