"""The settings that every kind of training shares, and how settings are checked and stored."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from math import isfinite
from types import NoneType, UnionType
from typing import Any, ClassVar, Self, Union, get_args, get_origin, get_type_hints

from torch import nn

from .. import _check
from ..errors import RunError
from ..nn.predictors import list_predictors
from ..structures import list_structures
from .ingredients.schedules import SCHEDULES

__all__ = [
    "COMMANDS",
    "NETWORK_SETTINGS",
    "SIMILARITIES",
    "SIMILARITY_SETTINGS",
    "Settings",
    "check_kind",
    "setting",
]

SIMILARITIES = ("none", "static", "dynamic")
OPTIMIZERS = {"sgd": 0.1, "adam": 1e-3}  # with their default learning rates, as in the paper
OVER = ("taps", "channels", "both", "kernels")
NORM_STARTS = ("one", "zero")
COMMANDS = {"train": "nsl train", "fewshot": "nsl fewshot train"}
"""The command that creates runs of each kind."""
_USES = {
    "train": "A few-shot run is for nsl fewshot eval, nsl inspect and nsl adapt --backbone; in "
    "Python, for fewshot.FewShotRun.",
    "fewshot": "A run of nsl train is for nsl eval, merge, export, inspect and adapt --backbone; "
    "in Python, for train.Run.",
}
NETWORK_SETTINGS = ("model", "options", "norm_eps")
"""What a trained network is; a run that starts from it has the same."""
SIMILARITY_SETTINGS = (
    "structure", "structure_options", "scope", "over", "similarity_groups", "predictor",
    "predictor_options", "hidden", "shared", "layers",
)  # fmt: skip
"""What its similarity is, if it has one."""


def setting(default: Any, help: str) -> Any:
    """A field with a default and a help text."""
    return field(default=default, metadata={"help": help})


@dataclass(frozen=True)
class Settings:
    """Settings of every kind of training: network, data, similarity, optimiser, machine."""

    model: str = setting("cnn9", "network; names below")
    options: dict[str, Any] = field(
        default_factory=dict, metadata={"help": "options of the network: options.width=48"}
    )
    data: str = setting("digits", "data set; `nsl data list` shows all")
    data_dir: str | None = setting(None, "folder of the data sets")
    image_size: int | None = setting(
        None, "resize images to this side in pixels; default: that of the data set"
    )
    strict: bool = setting(False, "stop at damaged images instead of skipping them")

    similarity: str = setting("none", "none, static or dynamic")
    structure: str = setting("diagonal", "structure of M; names below")
    structure_options: dict[str, Any] = field(
        default_factory=dict,
        metadata={"help": "options of the structure: structure_options.keep=0.3"},
    )
    scope: str = setting("layer", "what shares one static M: layer, channel, kernel or full")
    over: str = setting("taps", "what a dynamic M spans: taps, channels, both or kernels")
    similarity_groups: int | None = setting(
        None, "channel groups, each with its own dynamic M; default: 1 over taps, else all"
    )
    predictor: str = setting(
        "sphere",
        "predictor of a dynamic M; names below, and patch, which is sphere",
    )
    predictor_options: dict[str, Any] = field(
        default_factory=dict,
        metadata={"help": "options of the predictor: predictor_options.start=authors"},
    )
    hidden: int | None = setting(
        None,
        "hidden units of predictors, or channels of pairs; default: 64 (matrices: 128), and 8 for "
        "pixel, image and pair",
    )
    shared: bool = setting(False, "one predictor for all layers with the same kernel size")
    layers: str | None = setting(
        None,
        "regular expression for the layers with a similarity; default: those that the network "
        "specifies",
    )
    similarity_l1: float = setting(0.0, "L1 penalty on M, static or predicted")

    epochs: float = setting(30.0, "passes over the training images")
    steps: int | None = setting(None, "number of training steps, instead of epochs")
    batch_size: int = setting(128, "images per step, over all processes")
    optimizer: str = setting("sgd", "sgd or adam")
    lr: float | None = setting(None, "peak learning rate; default: 0.1 for sgd, 0.001 for adam")
    schedule: str = setting("onecycle", "learning rate over time: " + ", ".join(SCHEDULES))
    momentum: float = setting(0.9, "momentum of sgd")
    weight_decay: float = setting(5e-4, "weight decay; biases have none")
    predictor_decay: float | None = setting(None, "decay of predictors; default: weight_decay")
    similarity_decay: float | None = setting(
        None, "decay of a static M; default: weight_decay, or 0.005 if unconstrained"
    )
    filter_decay: float | None = setting(
        None, "decay of backbone convolutions, except attention; default: weight_decay"
    )
    norm_decay: float = setting(0.0, "decay of BatchNorm gains and biases")
    norm_momentum: float | None = setting(
        None, "momentum of BatchNorm statistics; default: the network's, mostly 0.1"
    )
    norm_eps: float | None = setting(None, "eps of BatchNorm; default: the network's, mostly 1e-5")
    norm_start: str = setting("one", "start of BatchNorm's running variances: one or zero")
    predictor_momentum: float | None = setting(
        None, "momentum of BatchNorm in predictors; default: norm_momentum"
    )
    grad_clip: float | None = setting(None, "largest gradient norm")

    seed: int = setting(0, "seed of weights, data order and augmentation")
    device: str = setting("auto", "cpu, cuda, or auto")
    threads: int | None = setting(None, "number of PyTorch threads")
    autocast: bool = setting(False, "compute in bfloat16 where it is safe")
    channels_last: bool = setting(True, "channels-last memory layout, faster for convolutions")
    compile: bool = setting(False, "use torch.compile")
    sync_batch_norm: bool = setting(False, "compute BatchNorm statistics over all processes")

    eval_every: int = setting(1, "epochs between evaluations")
    log_every: int = setting(20, "steps between lines in metrics.jsonl")
    checkpoint_minutes: float = setting(5.0, "minutes between checkpoints within an epoch")

    kind: ClassVar[str]
    similarities: ClassVar[tuple[str, ...]] = SIMILARITIES

    def __post_init__(self) -> None:
        for name, kind in _types(type(self)).items():  # type: ignore[arg-type]
            value = getattr(self, name)
            _check_type(name, value, kind)
            if isinstance(value, dict):
                object.__setattr__(self, name, _as_stored(name, value))
        for name, choices in (
            ("similarity", self.similarities),
            ("structure", list_structures()),
            ("optimizer", OPTIMIZERS),
            ("predictor", ("patch", *list_predictors())),
            ("over", OVER),
            ("schedule", SCHEDULES),
            ("norm_start", NORM_STARTS),
        ):
            _check.known_name("configuration", name, getattr(self, name), choices)
        self.at_least(0, "weight_decay", "predictor_decay", "similarity_decay",
                      "filter_decay", "norm_decay", "checkpoint_minutes", "momentum",
                      "seed", "similarity_l1")  # fmt: skip
        self.at_least(1, "batch_size", "eval_every", "log_every", "threads", "similarity_groups")
        self.above(0, "grad_clip", "steps", "lr", "image_size", "hidden", "norm_eps")
        self.shares("norm_momentum", "predictor_momentum")
        if self.threads is not None and self.threads > 1024:
            raise RunError(f"configuration: expected at most 1024 threads, got {self.threads}.")
        if self.seed >= 2**31:
            raise RunError(f"configuration: expected seed below 2**31, got {self.seed}.")

    def at_least(self, least: float, *names: str) -> None:
        """Raise if one of these settings is set and below ``least``."""
        for name in names:
            value = getattr(self, name)
            if value is not None and not value >= least:
                raise RunError(f"configuration: expected {name} of at least {least}, got {value}.")

    def above(self, least: float, *names: str) -> None:
        """Raise if one of these settings is set and not above ``least``."""
        for name in names:
            value = getattr(self, name)
            if value is not None and not value > least:
                raise RunError(f"configuration: expected {name} above {least}, got {value}.")

    def shares(self, *names: str) -> None:
        """Raise if one of these settings is set and not from 0 to 1."""
        for name in names:
            value = getattr(self, name)
            if value is not None and not 0 <= value <= 1:
                raise RunError(f"configuration: expected {name} from 0 to 1, got {value}.")

    def need_similarity(self, *names: str) -> None:
        """Raise if one of these settings is set, and the network has no similarity."""
        for name in names:
            if getattr(self, name) and self.similarity_kind() == "none":
                raise RunError(
                    f"configuration: expected a similarity with {name}, got none. Set similarity, "
                    f"or leave {name} out."
                )

    @property
    def learning_rate(self) -> float:
        """The peak of the schedule."""
        return OPTIMIZERS[self.optimizer] if self.lr is None else self.lr

    def lr_factors(self, model: nn.Module) -> dict[nn.Parameter, float]:
        """Learning rates of parameters, as multiples of the schedule's, where that is not 1."""
        return {}

    def similarity_kind(self) -> str:
        """The similarity of the network: none, static or dynamic."""
        return self.similarity

    def total_steps(self, batches: int) -> int:
        """The number of steps if an epoch has ``batches`` batches; zero for zero epochs."""
        return self.steps or (max(1, round(self.epochs * batches)) if self.epochs else 0)

    def frozen_steps(self, batches: int) -> int:
        """The number of initial steps that train only the similarity."""
        return 0

    def gives_up(self, evaluations: int) -> bool:
        """Whether to stop early, after this many evaluations without a lower error."""
        return False

    def to_dict(self) -> dict[str, Any]:
        """Plain values that can be written to a file."""
        return {"kind": self.kind, **dataclasses.asdict(self)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The inverse of :meth:`to_dict`; missing settings have their defaults."""
        check_kind("configuration", "settings", values, cls.kind)
        types = _types(cls)  # type: ignore[arg-type]
        settings = {name: value for name, value in values.items() if name != "kind"}
        for name in settings:
            _check.known_name("configuration", "a setting", name, types)
        return cls(**{name: _converted(value, types[name]) for name, value in settings.items()})


def check_kind(where: object, what: str, settings: Mapping[str, Any], kind: str) -> None:
    """Raise if settings have a kind other than ``kind``; settings without one are accepted."""
    got = settings.get("kind", kind)
    if got != kind:
        command = COMMANDS.get(got, got) if isinstance(got, str) else got
        advice = _USES[kind] if got in COMMANDS else "The file is damaged, or of a newer version."
        raise RunError(f"{where}: expected {what} of {COMMANDS[kind]!r}, got {command!r}. {advice}")


@cache
def _types(cls: type[Settings]) -> dict[str, Any]:
    """The type of each setting; finding them takes longer than checking them."""
    hints = get_type_hints(cls)
    return {setting.name: hints[setting.name] for setting in fields(cls)}


def _as_stored(name: str, options: dict[str, Any]) -> Any:
    """Options as they are after writing and reading a file: a tuple becomes a list."""
    try:
        return json.loads(json.dumps(options))
    except TypeError as error:
        raise RunError(
            f"configuration: expected {name} with values that JSON can store, got {options!r} "
            f"({error})."
        ) from error


def _choices(kind: Any) -> tuple[type, ...]:
    kinds = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    return tuple(get_origin(one) or one for one in kinds)


def _converted(value: Any, kind: Any) -> Any:
    """An integer as float where the setting is a float."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    return float(value) if whole and float in _choices(kind) else value


def _check_type(name: str, value: Any, kind: Any) -> None:
    kinds = _choices(kind)
    is_valid = isinstance(value, kinds) and not (isinstance(value, bool) and bool not in kinds)
    if not is_valid and not (float in kinds and type(value) is int):
        words = {int: "a whole number", float: "a number", bool: "true or false", str: "text",
                 dict: "names and values", NoneType: "none"}  # fmt: skip
        expected = " or ".join(words[k] for k in kinds)
        raise RunError(f"configuration: expected {name} to be {expected}, got {value!r}.")
    if isinstance(value, float) and not isfinite(value):
        raise RunError(f"configuration: expected {name} to be a finite number, got {value}.")
