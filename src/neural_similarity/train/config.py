"""Everything that decides how a network is trained for classification, in one frozen table."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from ..errors import RunError
from .settings import Settings, setting

__all__ = ["TrainConfig", "merge_settings", "parse_setting", "read_settings"]


@dataclass(frozen=True)
class TrainConfig(Settings):
    """How a network is trained. The defaults are the paper's where it names them.

    Example:
        >>> TrainConfig(model="cnn9", data="cifar10", similarity="dynamic").learning_rate
        0.1
    """

    validation: float = setting(0.0, "share of the training images to evaluate on, not to train")
    workers: int = setting(2, "processes that decode images, for image folders")
    label_smoothing: float = setting(0.01, "share of each label spread over all classes")
    filter_orthogonality: float = setting(0.0, "penalty on filters that are not orthogonal")

    kind: ClassVar[str] = "train"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.at_least(0, "workers", "filter_orthogonality")
        self.above(0, "epochs")
        for name in ("validation", "label_smoothing"):
            if not 0 <= getattr(self, name) < 1:
                raise RunError(
                    f"configuration: expected {name} from 0 to below 1, got {getattr(self, name)}."
                )


def read_settings(path: Path) -> dict[str, Any]:
    """Settings from a TOML or JSON file, by name."""
    if not path.is_file():
        raise RunError(f"configuration: expected a file, got {str(path)!r}, which is none.")
    try:
        text = path.read_text(encoding="utf-8")
        settings = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (json.JSONDecodeError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RunError(
            f"configuration: expected {str(path)!r} to be TOML, or JSON if so named, got a file "
            f"that cannot be read as such ({error})."
        ) from error
    if not isinstance(settings, dict):
        raise RunError(f"configuration: expected names and values in {str(path)!r}, got a list.")
    return settings


def parse_setting(text: str) -> tuple[str, Any]:
    """``key=value`` as typed: a name, and a value that is a TOML literal or else a word.

    >>> parse_setting("options.width=48")
    ('options.width', 48)
    >>> parse_setting("schedule=paper")
    ('schedule', 'paper')

    The word ``none`` takes a setting away; where it may be a choice, in options, ``None`` does.
    """
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise RunError(f"--set: expected key=value, got {text!r}. For example: --set lr=0.05.")
    name, word = name.strip(), value.strip()
    try:
        return name, tomllib.loads(f"value = {word}")["value"]
    except tomllib.TOMLDecodeError:
        nothing = word == "None" or ("." not in name and word.lower() == "none")
    if not nothing:
        return name, word
    return name, "none" if name == "similarity" else None


def merge_settings(settings: dict[str, Any], more: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Settings with others written over them; ``options.width`` goes into ``options``."""
    result = dict(settings)
    for name, value in more:
        outer, dot, inner = name.partition(".")
        inside = result.get(outer, {})
        result[outer] = {**inside, inner: value} if dot and isinstance(inside, dict) else value
    return result
