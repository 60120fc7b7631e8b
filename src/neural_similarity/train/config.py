"""All settings of training for classification, in one frozen dataclass."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from .. import _check
from .._io import read_regular
from .._json import read_json
from ..data.augment import PADDINGS
from ..errors import RunError
from .settings import Settings, setting

__all__ = ["TrainConfig", "merge_settings", "parse_setting", "read_settings"]

AUGMENTATIONS = ("usual", "none", "flip", "krizhevsky")
PIXELS = ("normalised", "centred", "raw")
_LARGEST = 2**24  # bytes of a settings file


@dataclass(frozen=True)
class TrainConfig(Settings):
    """How a network is trained. The defaults are the paper's, where the paper gives a value.

    Example:
        >>> TrainConfig(model="cnn9", data="cifar10", similarity="dynamic").learning_rate
        0.1
    """

    validation: float = setting(0.0, "share of the training images held out for evaluation")
    workers: int = setting(2, "processes that decode images, for image folders")
    label_smoothing: float = setting(0.01, "share of each label spread over all classes")
    from_run: str | None = setting(None, "run of nsl train to start from")
    similarity_epochs: float = setting(
        0.0, "initial epochs, out of all, that train only the similarity; needs from_run"
    )
    loss_floor: float = setting(
        0.0, "added to each probability before the logarithm: 0.0001 bounds the loss at 9.2"
    )
    filter_orthogonality: float = setting(0.0, "penalty on non-orthogonal filters")
    pixels: str = setting(
        "normalised", "pixel values: normalised (by the data), centred (-1 to 1) or raw (0 to 255)"
    )
    augmentation: str = setting(
        "usual", "of training images: usual (for the data set), none, flip or krizhevsky"
    )
    padding: str = setting("zeros", "padding for random crops: zeros or mirror")
    color_noise: float | None = setting(
        None, "std of noise along the principal colour axes; default: 0.1 for krizhevsky, else 0"
    )

    kind: ClassVar[str] = "train"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, choices in (
            ("pixels", PIXELS),
            ("augmentation", AUGMENTATIONS),
            ("padding", PADDINGS),
        ):
            _check.known_name("configuration", name, getattr(self, name), choices)
        self.at_least(
            0, "workers", "filter_orthogonality", "similarity_epochs", "loss_floor", "color_noise"
        )
        self.need_similarity("similarity_l1", "similarity_epochs")
        if self.similarity_epochs and self.from_run is None:
            raise RunError(
                "configuration: expected from_run with similarity_epochs, got none. The other "
                "weights would stay random for these epochs. Name a trained run with --from."
            )
        self.above(0, "epochs")
        if self.workers > 256:  # each is a process
            raise RunError(f"configuration: expected at most 256 workers, got {self.workers}.")
        for name in ("validation", "label_smoothing"):
            if not 0 <= getattr(self, name) < 1:
                raise RunError(
                    f"configuration: expected {name} of at least 0 and below 1, got "
                    f"{getattr(self, name)}."
                )

    def frozen_steps(self, batches: int) -> int:
        return round(self.similarity_epochs * batches)


def read_settings(path: Path) -> dict[str, Any]:
    """Settings from a TOML or JSON file, by name."""
    if not path.is_file():
        kind = "a folder:" if path.is_dir() else "nothing at"
        raise RunError(f"configuration: expected a file, got {kind} {str(path)!r}.")
    if path.suffix == ".json":
        return read_json(path, dict[str, Any], RunError)
    try:
        return tomllib.loads(read_regular(path, _LARGEST).decode())
    except (OSError, ValueError, RecursionError) as error:  # ValueError: not TOML, or not UTF-8
        raise RunError(
            f"configuration: expected TOML in {str(path)!r}, or JSON if the name ends in .json, "
            f"got a file that cannot be read as TOML ({error})."
        ) from error


def parse_setting(text: str) -> tuple[str, Any]:
    """Parse ``key=value`` from the command line; the value is a TOML literal, or else a string.

    >>> parse_setting("options.width=48")
    ('options.width', 48)
    >>> parse_setting("schedule=paper")
    ('schedule', 'paper')

    The word ``none`` unsets a setting. In options, where ``none`` may be a choice, ``None`` does.
    """
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise RunError(f"--set: expected key=value, got {text!r}. For example: --set lr=0.05.")
    name, word = name.strip(), value.strip()
    try:
        return name, tomllib.loads(f"value = {word}")["value"]
    except (ValueError, RecursionError):  # not TOML, too many digits, too many brackets
        is_unset = word == "None" or ("." not in name and word.lower() == "none")
    if not is_unset:
        return name, word
    return name, "none" if name in ("similarity", "augmentation") else None


def merge_settings(settings: dict[str, Any], more: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Settings updated with ``more``; ``options.width`` goes into ``options``."""
    result = dict(settings)
    for name, value in more:
        outer, dot, inner = name.partition(".")
        options = result.get(outer, {})
        result[outer] = {**options, inner: value} if dot and isinstance(options, dict) else value
    return result
