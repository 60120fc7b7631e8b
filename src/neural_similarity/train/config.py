"""Everything that decides how a network is trained, in one frozen table."""

from __future__ import annotations

import dataclasses
import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from .. import _check
from ..errors import RunError

__all__ = ["TrainConfig", "merge_settings", "parse_setting", "read_settings"]

SIMILARITIES = ("none", "static", "dynamic")
OPTIMIZERS = {"sgd": 0.1, "adam": 1e-3}  # and the learning rate each begins with, as in the paper
PREDICTORS = ("sphere", "conv")


def _setting(default: Any, help: str) -> Any:
    return field(default=default, metadata={"help": help})


@dataclass(frozen=True)
class TrainConfig:
    """How a network is trained. The defaults are the paper's where it names them.

    Example:
        >>> TrainConfig(model="cnn9", data="cifar10", similarity="dynamic").learning_rate
        0.1
    """

    model: str = _setting("cnn9", "a network of `list_models()`")
    options: dict[str, Any] = field(
        default_factory=dict, metadata={"help": "more for the network, as in options.width=48"}
    )
    data: str = _setting("digits", "a data set of `nsl data list`")
    data_dir: str | None = _setting(None, "where data sets are kept")
    image_size: int | None = _setting(None, "resize images to this side, where the data set can")
    validation: float = _setting(0.0, "share of the training images to evaluate on, not to train")
    strict: bool = _setting(False, "corrupt images are an error, not skipped")
    workers: int = _setting(2, "processes that decode images, for image folders")

    similarity: str = _setting("none", "none, static or dynamic")
    structure: str = _setting("diagonal", "what M may be")
    structure_options: dict[str, Any] = field(
        default_factory=dict, metadata={"help": "more for it: structure_options.keep=0.3"}
    )
    scope: str = _setting("layer", "what shares one static M")
    predictor: str = _setting("sphere", "who predicts a dynamic M: sphere or conv")
    predictor_options: dict[str, Any] = field(
        default_factory=dict, metadata={"help": "more for it: predictor_options.start=authors"}
    )
    hidden: int | None = _setting(None, "hidden units of predictors; 64, or 128 for matrices")
    shared: bool = _setting(False, "one predictor for all layers of a kernel size")

    epochs: float = _setting(30.0, "passes over the training images")
    steps: int | None = _setting(None, "steps in all, instead of epochs")
    batch_size: int = _setting(128, "images a step, over all processes")
    optimizer: str = _setting("sgd", "sgd or adam")
    lr: float | None = _setting(None, "peak learning rate; 0.1 for sgd, 0.001 for adam")
    schedule: str = _setting("onecycle", "how the learning rate goes, as a share of all steps")
    momentum: float = _setting(0.9, "of sgd")
    weight_decay: float = _setting(5e-4, "of weights; gains and biases have none")
    predictor_decay: float | None = _setting(None, "of predictors' weights; weight_decay")
    similarity_decay: float | None = _setting(
        None, "of a static M towards 0; 5e-3 for unconstrained, else weight_decay"
    )
    label_smoothing: float = _setting(0.01, "share of each label spread over all classes")
    grad_clip: float | None = _setting(None, "largest norm of a gradient")

    seed: int = _setting(0, "of weights, order and augmentation")
    device: str = _setting("auto", "cpu, cuda, or auto")
    threads: int | None = _setting(None, "threads of PyTorch")
    autocast: bool = _setting(False, "compute in bfloat16 where it is safe")
    channels_last: bool = _setting(True, "the fast memory layout for convolutions")
    compile: bool = _setting(False, "use torch.compile")
    sync_batch_norm: bool = _setting(False, "BatchNorm over the batches of all processes")

    eval_every: int = _setting(1, "epochs between evaluations")
    log_every: int = _setting(20, "steps between lines of metrics")
    checkpoint_minutes: float = _setting(5.0, "between checkpoints within an epoch")

    def __post_init__(self) -> None:
        for name, kind in _types().items():
            _check_type(name, getattr(self, name), kind)
        from .schedules import SCHEDULES

        for name, choices in (
            ("similarity", SIMILARITIES),
            ("optimizer", OPTIMIZERS),
            ("predictor", PREDICTORS),
            ("schedule", SCHEDULES),
        ):
            _check.known_name("configuration", name, getattr(self, name), choices)
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is not None and not value >= least:
                raise RunError(f"configuration: expected {name} of at least {least}, got {value}.")
        for name in ("epochs", "steps", "lr", "image_size", "hidden"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise RunError(f"configuration: expected {name} above 0, got {value}.")
        if self.seed >= 2**31:
            raise RunError(f"configuration: expected seed below 2**31, got {self.seed}.")
        for name in ("validation", "label_smoothing"):
            if not 0 <= getattr(self, name) < 1:
                raise RunError(
                    f"configuration: expected {name} from 0 to below 1, got {getattr(self, name)}."
                )

    @property
    def learning_rate(self) -> float:
        """The peak of the schedule."""
        return OPTIMIZERS[self.optimizer] if self.lr is None else self.lr

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for a file."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TrainConfig:
        """The inverse of :meth:`to_dict`; what is left out has its default."""
        for name in values:
            _check.known_name("configuration", "a setting", name, _types())
        return cls(**{name: _fitting(value, _types()[name]) for name, value in values.items()})

    def total_steps(self, batches: int) -> int:
        """Steps in all, for an epoch of so many batches."""
        return self.steps or max(1, round(self.epochs * batches))


_LEAST = {
    "batch_size": 1, "eval_every": 1, "log_every": 1, "threads": 1, "workers": 0, "grad_clip": 0,
    "weight_decay": 0, "predictor_decay": 0, "similarity_decay": 0, "checkpoint_minutes": 0,
    "momentum": 0, "seed": 0,
}  # fmt: skip


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
    """
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise RunError(f"--set: expected key=value, got {text!r}. For example: --set lr=0.05.")
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = None if value.strip().lower() == "none" else value.strip()
    if parsed is None and name.strip() == "similarity":
        parsed = "none"
    return name.strip(), parsed


def merge_settings(settings: dict[str, Any], more: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Settings with others written over them; ``options.width`` goes into ``options``."""
    result = dict(settings)
    for name, value in more:
        outer, dot, inner = name.partition(".")
        inside = result.get(outer, {})
        result[outer] = {**inside, inner: value} if dot and isinstance(inside, dict) else value
    return result


def _types() -> dict[str, Any]:
    return get_type_hints(TrainConfig)


def _choices(kind: Any) -> tuple[type, ...]:
    kinds = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    return tuple(get_origin(one) or one for one in kinds)


def _fitting(value: Any, kind: Any) -> Any:
    """A whole number is a number."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    return float(value) if whole and float in _choices(kind) else value


def _check_type(name: str, value: Any, kind: Any) -> None:
    kinds = _choices(kind)
    right = isinstance(value, kinds) and not (isinstance(value, bool) and bool not in kinds)
    if not right and not (float in kinds and type(value) is int):
        words = {int: "a whole number", float: "a number", bool: "true or false", str: "a word",
                 dict: "names and values", NoneType: "none"}  # fmt: skip
        expected = " or ".join(words[k] for k in kinds)
        raise RunError(f"configuration: expected {name} to be {expected}, got {value!r}.")
