"""What every kind of training has to be told, and how a table of settings is checked and kept."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from math import isfinite
from types import NoneType, UnionType
from typing import Any, ClassVar, Self, Union, get_args, get_origin, get_type_hints

from .. import _check
from ..errors import RunError
from .schedules import SCHEDULES

__all__ = ["COMMANDS", "SIMILARITIES", "Settings", "check_kind", "setting"]

SIMILARITIES = ("none", "static", "dynamic")
OPTIMIZERS = {"sgd": 0.1, "adam": 1e-3}  # and the learning rate each begins with, as in the paper
PREDICTORS = ("sphere", "conv")
COMMANDS = {"train": "nsl train", "fewshot": "nsl fewshot train"}
"""Which command makes runs of each kind."""


def setting(default: Any, help: str) -> Any:
    """A field with its explanation."""
    return field(default=default, metadata={"help": help})


@dataclass(frozen=True)
class Settings:
    """What all kinds of training share: network, data, similarity, optimiser, computer."""

    model: str = setting("cnn9", "a network of `list_models()`")
    options: dict[str, Any] = field(
        default_factory=dict, metadata={"help": "more for the network, as in options.width=48"}
    )
    data: str = setting("digits", "a data set of `nsl data list`")
    data_dir: str | None = setting(None, "where data sets are kept")
    image_size: int | None = setting(None, "resize images to this side, where the data set can")
    strict: bool = setting(False, "corrupt images are an error, not skipped")

    similarity: str = setting("none", "none, static or dynamic")
    structure: str = setting("diagonal", "what M may be")
    structure_options: dict[str, Any] = field(
        default_factory=dict, metadata={"help": "more for it: structure_options.keep=0.3"}
    )
    scope: str = setting("layer", "what shares one static M")
    predictor: str = setting("sphere", "who predicts a dynamic M: sphere or conv")
    predictor_options: dict[str, Any] = field(
        default_factory=dict, metadata={"help": "more for it: predictor_options.start=authors"}
    )
    hidden: int | None = setting(None, "hidden units of predictors; 64, or 128 for matrices")
    shared: bool = setting(False, "one predictor for all layers of a kernel size")

    epochs: float = setting(30.0, "passes over the training images")
    steps: int | None = setting(None, "steps in all, instead of epochs")
    batch_size: int = setting(128, "images a step, over all processes")
    optimizer: str = setting("sgd", "sgd or adam")
    lr: float | None = setting(None, "peak learning rate; 0.1 for sgd, 0.001 for adam")
    schedule: str = setting("onecycle", "how the learning rate goes, as a share of all steps")
    momentum: float = setting(0.9, "of sgd")
    weight_decay: float = setting(5e-4, "of weights; gains and biases have none")
    predictor_decay: float | None = setting(None, "of predictors' weights; weight_decay")
    similarity_decay: float | None = setting(
        None, "of a static M towards 0; 5e-3 for unconstrained, else weight_decay"
    )
    grad_clip: float | None = setting(None, "largest norm of a gradient")

    seed: int = setting(0, "of weights, order and augmentation")
    device: str = setting("auto", "cpu, cuda, or auto")
    threads: int | None = setting(None, "threads of PyTorch")
    autocast: bool = setting(False, "compute in bfloat16 where it is safe")
    channels_last: bool = setting(True, "the fast memory layout for convolutions")
    compile: bool = setting(False, "use torch.compile")
    sync_batch_norm: bool = setting(False, "BatchNorm over the batches of all processes")

    eval_every: int = setting(1, "epochs between evaluations")
    log_every: int = setting(20, "steps between lines of metrics")
    checkpoint_minutes: float = setting(5.0, "between checkpoints within an epoch")

    kind: ClassVar[str]
    similarities: ClassVar[tuple[str, ...]] = SIMILARITIES

    def __post_init__(self) -> None:
        for name, kind in _types(type(self)).items():
            value = getattr(self, name)
            _check_type(name, value, kind)
            if isinstance(value, dict):
                object.__setattr__(self, name, _as_in_a_file(name, value))
        for name, choices in (
            ("similarity", self.similarities),
            ("optimizer", OPTIMIZERS),
            ("predictor", PREDICTORS),
            ("schedule", SCHEDULES),
        ):
            _check.known_name("configuration", name, getattr(self, name), choices)
        self.at_least(0, "grad_clip", "weight_decay", "predictor_decay", "similarity_decay",
                      "checkpoint_minutes", "momentum", "seed")  # fmt: skip
        self.at_least(1, "batch_size", "eval_every", "log_every", "threads")
        self.above(0, "steps", "lr", "image_size", "hidden")
        if self.threads is not None and self.threads > 1024:
            raise RunError(f"configuration: expected at most 1024 threads, got {self.threads}.")
        if self.seed >= 2**31:
            raise RunError(f"configuration: expected seed below 2**31, got {self.seed}.")

    def at_least(self, least: float, *names: str) -> None:
        """Raise if a setting is given and smaller."""
        for name in names:
            value = getattr(self, name)
            if value is not None and not value >= least:
                raise RunError(f"configuration: expected {name} of at least {least}, got {value}.")

    def above(self, least: float, *names: str) -> None:
        """Raise if a setting is given and not larger."""
        for name in names:
            value = getattr(self, name)
            if value is not None and not value > least:
                raise RunError(f"configuration: expected {name} above {least}, got {value}.")

    @property
    def learning_rate(self) -> float:
        """The peak of the schedule."""
        return OPTIMIZERS[self.optimizer] if self.lr is None else self.lr

    def similarity_kind(self) -> str:
        """What stands on the network: none, static or dynamic."""
        return self.similarity

    def total_steps(self, batches: int) -> int:
        """Steps in all, for an epoch of so many batches; no epochs are no steps."""
        return self.steps or (max(1, round(self.epochs * batches)) if self.epochs else 0)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for a file."""
        return {"kind": self.kind, **dataclasses.asdict(self)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The inverse of :meth:`to_dict`; what is left out has its default."""
        check_kind("configuration", "settings", values, cls.kind)
        types = _types(cls)
        given = {name: value for name, value in values.items() if name != "kind"}
        for name in given:
            _check.known_name("configuration", "a setting", name, types)
        return cls(**{name: _fitting(value, types[name]) for name, value in given.items()})


def check_kind(where: object, what: str, settings: Mapping[str, Any], kind: str) -> None:
    """Raise if settings are of another kind; those that say nothing are of the first."""
    got = settings.get("kind", kind)
    if got != kind:
        raise RunError(
            f"{where}: expected {what} of {COMMANDS[kind]!r}, got {COMMANDS.get(got, got)!r}. "
            f"Commands for the one kind do not take the other."
        )


def _types(cls: type[Settings]) -> dict[str, Any]:
    hints = get_type_hints(cls)
    return {setting.name: hints[setting.name] for setting in fields(cls)}


def _as_in_a_file(name: str, options: dict[str, Any]) -> Any:
    """Options as they come back from a file: a tuple is a list there."""
    try:
        return json.loads(json.dumps(options))
    except TypeError as error:
        raise RunError(
            f"configuration: expected {name} of plain values, got {options!r}, which a file cannot "
            f"hold ({error})."
        ) from error


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
    if isinstance(value, float) and not isfinite(value):
        raise RunError(f"configuration: expected {name} to be a finite number, got {value}.")
