"""The ``nsl`` command that trains a configuration."""

from __future__ import annotations

from shlex import join

from neural_similarity.fewshot import FewShotConfig
from neural_similarity.train import TrainConfig

__all__ = ["command_for"]

# By kind: the command, the settings that have an option, and those that are always written.
_COMMANDS = {
    "train": (
        "nsl train",
        ("model", "data", "similarity", "structure", "epochs", "steps", "optimizer", "lr"),
        ("model", "data", "similarity"),
    ),
    "fewshot": (
        "nsl fewshot train",
        ("method", "data", "model", "backbone", "epochs", "steps", "lr", "seed"),
        (),
    ),
}
_NOT_OF_THE_RESULT = ("data_dir", "threads")


def command_for(config: TrainConfig | FewShotConfig) -> str:
    """The command that trains this configuration, without the folders it reads and writes."""
    command, options, always = _COMMANDS[config.kind]
    defaults, words = _flat(type(config)()), list[str]()
    for name, value in _flat(config).items():
        if name in always or (value != defaults.get(name) and name not in _NOT_OF_THE_RESULT):
            text = _literal(value)
            words += [f"--{name}", text] if name in options else ["--set", f"{name}={text}"]
    return f"{command} {join(words)}"


def _literal(value: object) -> str:
    """A value as ``--set`` reads it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and float(f"{value:g}") == value:
        return f"{value:g}"
    return f"{value}"


def _flat(config: TrainConfig | FewShotConfig) -> dict[str, object]:
    """Settings by name; nested ones as ``options.width``."""
    flat: dict[str, object] = {}
    for name, value in config.to_dict().items():
        nested = value if isinstance(value, dict) else None
        flat |= {name: value} if nested is None else {f"{name}.{k}": v for k, v in nested.items()}
    return flat
