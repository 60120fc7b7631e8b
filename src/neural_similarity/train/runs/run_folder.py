"""A run is a folder: its settings, environment, metrics and weights.

::

    config.json        the complete configuration
    environment.json   versions, machine, data, command: one entry each time it was started
    metrics.jsonl      one JSON object per line: "train" every few steps, "eval" after an epoch
    last.safetensors   the newest weights, with last-STEP.optimizer.safetensors
    best.safetensors   the weights with the lowest evaluation error
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

from torch import Tensor

from ... import _check
from ..._io import write_file
from ..._json import Side, build, read_json
from ...data import FolderSet, ImageSet, eval_loader
from ...data.images import SEEN_SHARE
from ...errors import RunError
from ..checkpoint import disk_errors, write_atomically
from ..commit import UNKNOWN
from ..distributed import World
from ..metrics import MetricsFile
from ..settings import COMMANDS, Settings, check_kind
from .environment import here_and_now
from .folders import (
    COMPARISON,
    alone,
    check_new,
    check_replaceable,
    read_object,
    replaced,
    run_names,
    tidy,
)

__all__ = [
    "RunFolder",
    "begin",
    "differing_settings",
]

MAY_DIFFER = ("data_dir", "device", "workers")
"""Settings that may change when a run is resumed: they do not affect its result."""

# The files that identify an adapted classifier in adapt/output_folder.py; imports only go down.
_ADAPTED = ("model.safetensors", "labels.json")

_Config = TypeVar("_Config", bound=Settings)


@dataclass(frozen=True)
class _Start:
    """What ``environment.json`` must contain for every start of a run."""

    classes: list[str]
    data_copies: dict[str, str]
    image_size: Side
    in_channels: Side
    mean: list[float]
    std: list[float]
    command: list[str] = field(default_factory=list)
    trained_classes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        channels = self.in_channels
        if not self.classes or not len(self.mean) == len(self.std) == channels:
            raise ValueError(
                f"expected at least one class, and mean and std with {channels} value(s) each"
            )
        if min(self.std) <= 0:
            raise ValueError("expected std above 0")


@dataclass(frozen=True)
class RunFolder(Generic[_Config]):
    """A training run of any kind on disk.

    Args:
        folder: where it is.
        config: how it was trained.
    """

    folder: Path
    config: _Config

    config_class: ClassVar[type[Settings]]

    @classmethod
    def open(
        cls, folder: str | os.PathLike[str], data_dir: str | os.PathLike[str] | None = None
    ) -> Self:
        """The run in a folder; ``data_dir`` is where its data are, if moved."""
        path = Path(folder)
        tidy(path)
        file = path / "config.json"
        kind = cls.config_class.kind
        if not path.is_dir():
            raise RunError(f"{path}: expected the folder of a run, got none.")
        if (path / COMPARISON).is_file():
            names = ", ".join(str(path / name) for name in run_names(path))
            raise RunError(
                f"{path}: expected one run, got a folder of several: {names}. Choose one of them."
            )
        if not file.is_file():
            _check_not_adapted(path, COMMANDS[kind])
            raise RunError(
                f"{path}: expected a run, got a folder without config.json. Name the folder that "
                f"`{COMMANDS[kind]} --out` wrote."
            )
        settings = read_object(file)
        check_kind(path, "a run", {"kind": "train", **settings}, kind)
        changes = {} if data_dir is None else {"data_dir": str(data_dir)}
        return cls(path, cls.config_class.from_dict({**settings, **changes}))  # type: ignore[arg-type]

    def exists(self) -> bool:
        """Whether there is a run in the folder."""
        return (self.folder / "config.json").is_file()

    def check_folder(self, resume: bool, force: bool) -> None:
        """Raise unless the folder can be resumed, replaced or created; changes nothing."""
        tidy(self.folder)
        if resume and self.exists():
            stored_config = type(self).open(self.folder).config
            if names := differing_settings(stored_config, self.config):
                raise RunError(
                    f"{self.folder}: expected the settings the run began with, got different "
                    f"values for {', '.join(names)}. Leave them out to continue, or choose "
                    f"another --out."
                )
        elif force:
            check_replaceable(self.folder)
        else:
            check_new(self.folder, resume)

    def create(self, force: bool = False) -> None:
        """Write the configuration into a new folder, or replace what is there."""
        begin(self.folder, "config.json", self.config.to_dict(), force)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Create the folder if needed, and keep other processes from training into it.

        The operating system locks the folder itself: the lock ends with its process.
        """
        with alone(self.folder):
            yield

    def has_checkpoint(self) -> bool:
        """Whether there are weights to resume from."""
        return (self.folder / "last.safetensors").is_file()

    def metrics(self) -> list[dict[str, Any]]:
        """Every line of metrics, in order."""
        return MetricsFile.read(self.folder / "metrics.jsonl")

    def environment(self) -> dict[str, Any]:
        """Where the run was last started, and on which data."""
        starts = self._starts()
        if not starts:
            raise RunError(f"{self.folder}: expected a run that was started, got one that was not.")
        latest: dict[str, Any] = starts[-1]
        return latest

    def commits(self) -> list[str]:
        """Every code version that trained the run, each once, the latest last."""
        starts = [start.get("commit", UNKNOWN) for start in self._starts()]
        return list(dict.fromkeys(reversed(starts)))[::-1]

    def remember_start(self, facts: Mapping[str, Any], world: World) -> None:
        """Add to ``environment.json``."""
        start = {**here_and_now(world), **facts}
        _write_json(self.folder / "environment.json", [*self._starts(), start])

    def check_data(self, facts: Mapping[str, Any]) -> None:
        """Raise if the run started with other data."""
        starts, copies = self._starts(), facts["data_copies"]
        if starts and starts[0]["data_copies"] != copies:
            raise self._other_data(copies, starts[0]["data_copies"])

    def weights(self, which: str) -> Path:
        """The file of the ``"last"`` or the ``"best"`` weights."""
        _check.known_name("run", "which", which, ("last", "best"))
        file = self.folder / f"{which}.safetensors"
        if not file.is_file():
            raise RunError(
                f"{self.folder}: expected {file.name}, got a run without it. It was stopped too "
                f"early. Continue with: {COMMANDS[self.config.kind]} --resume --out {self.folder}."
            )
        return file

    def classes(self) -> tuple[str, ...]:
        """The classes of the network."""
        return tuple(self.environment()["classes"])

    def normalisation(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Mean and standard deviation that normalise images, by channel."""
        environment = self.environment()
        return tuple(environment["mean"]), tuple(environment["std"])

    def chosen(self) -> str:
        """Which weights are used by default."""
        return "last"

    def example(self, count: int = 8) -> Tensor:
        """The first test images, as the network takes them; a changed copy of the data will do."""
        mean, std = self.normalisation()
        loader = eval_loader(self._images(), count, mean=mean, std=std)
        images, _ = next(iter(loader.epoch(0)))
        return images

    def shown_share(self) -> float:
        """The share of the shorter side that evaluation shows of an image."""
        return SEEN_SHARE if isinstance(self._images(), FolderSet) else 1.0  # see FolderLoader

    def _images(self) -> ImageSet:
        """The images to test with."""
        raise NotImplementedError

    def _other_data(self, fingerprint: object, original: object) -> RunError:
        return RunError(
            f"{self.folder}: expected the data the run began with, got different data for "
            f"{self.config.data!r} (fingerprint {fingerprint}, not {original}). Restore the "
            f"original data, or start a new run."
        )

    def _starts(self) -> list[dict[str, Any]]:
        file = self.folder / "environment.json"
        if not file.is_file():
            return []
        advice = "Restore the file from a copy, or start a new run."
        starts = read_json(file, list[dict[str, Any]], RunError, advice)
        for start in starts:  # one for each time the run was started
            build(_Start, start, file, RunError, advice, others=True)
        return starts


def _check_not_adapted(folder: Path, command: str) -> None:
    if all((folder / name).is_file() for name in _ADAPTED):
        onnx = folder / "model.onnx"
        export = f"; {onnx} is its export" if onnx.is_file() else ""
        raise RunError(
            f"{folder}: expected a run of {command}, got a classifier from nsl adapt. Use it with "
            f"`nsl predict {folder} IMAGE...`{export}."
        )


def differing_settings(stored_config: Settings, config: Settings) -> list[str]:
    """Settings that prevent resuming, because they would change the result."""
    before, now = stored_config.to_dict(), config.to_dict()
    return [name for name in now if now[name] != before[name] and name not in MAY_DIFFER]


def begin(folder: Path, name: str, settings: Mapping[str, Any], force: bool) -> None:
    """Write the file that marks a folder as ours; ``force`` replaces what is there."""
    folder.mkdir(parents=True, exist_ok=True)
    if not force:
        check_new(folder)
        return _write_json(folder / name, settings)
    content = _json(settings)
    with disk_errors(folder / name, len(content)), replaced(folder) as new:
        write_file(new / name, content)
    return None


def _write_json(path: Path, value: Any) -> None:
    write_atomically(path, _json(value))


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=2) + "\n").encode()
