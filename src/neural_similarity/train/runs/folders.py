"""The files in a run folder, and which may be removed: only our own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from ..._io import alone_in, foreign_entries, has_writers, locked, settle, whole_folder
from ..._json import read_json
from ...data import data_directory
from ...data.folders import SPLITS, check_outside, folder_names
from ...errors import RunError
from ..settings import Settings

__all__ = [
    "COMPARISON",
    "alone",
    "check_new",
    "check_outside_images",
    "check_replaceable",
    "read_object",
    "read_runs",
    "replaced",
    "run_names",
    "sharing",
    "tidy",
]

COMPARISON = "comparison.json"
_MARKS = {"config.json", COMPARISON}  # one of them is in each of our folders
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
            raise RunError(
                f"{file}: expected names of folders, got {name!r}. The file is damaged. Restore it "
                f"from a copy, or start a new run."
            )
    return runs


def tidy(folder: Path) -> None:
    """Finish a replacement that a killed process began, unless the folder is read-only."""
    with suppress(OSError):
        settle(folder)


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Create a folder if needed, and keep other processes from writing runs into it.

    The operating system locks the folder itself: the lock ends with its process.
    """
    if not folder.is_dir():
        check_replaceable(folder)  # a file cannot be replaced
        folder.mkdir(parents=True, exist_ok=True)
    with alone_in(folder) as free:
        if not free:
            raise _busy(folder)
        yield


@contextmanager
def sharing(folder: Path) -> Iterator[None]:
    """Keep other processes from replacing a folder; any number may write files into it."""
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder, shared=True) as free:
        if not free:
            raise _busy(folder)
        yield


@contextmanager
def replaced(folder: Path) -> Iterator[Path]:
    """A new folder, whose files replace all runs in a folder if the block succeeds.

    The caller has locked the folder; the runs in it must not be in use either. After a kill, there
    are either the old runs or the new files, never half of them.
    """
    check_replaceable(folder)
    with ExitStack() as stack:
        for inside in _folders_in(folder):
            stack.enter_context(alone(inside))
        for place in (folder, *_folders_in(folder)):
            if has_writers(place):
                raise _busy(place)
        yield stack.enter_context(
            whole_folder(folder, lambda: check_replaceable(folder), keep=True)
        )


def _folders_in(folder: Path) -> Iterator[Path]:
    for path in foreign_entries(folder):
        if path.is_dir():
            yield path
            yield from _folders_in(path)


def _busy(folder: Path) -> RunError:
    return RunError(
        f"{folder}: expected a folder that no other process uses, got one that another process "
        f"is training or testing in. Wait until it has finished, or choose another --out."
    )


def check_replaceable(folder: Path) -> None:
    """Raise unless a folder is new or holds only runs: nothing else is ever removed."""
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
    """A file in a folder that no run writes; None if there is none."""
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


def check_outside_images(folder: Path, config: Settings) -> None:
    """Raise if a new run would be among the images that it is trained on, as a class."""
    if config.data == "imagefolder":
        images = data_directory(config.data_dir)
        others = SPLITS - {"train"}  # with only train/, pictures of a run could pass for a class
        if images.is_dir() and others.isdisjoint(folder_names(images)):
            check_outside(folder, images)


def check_new(folder: Path, resume: bool = False) -> None:
    """Raise unless a folder is new or empty; ``resume`` if a run was expected there."""
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
