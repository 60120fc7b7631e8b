"""The command that trains what a configuration says."""

from __future__ import annotations

from shlex import join

from neural_similarity.fewshot import FewShotConfig
from neural_similarity.train import TrainConfig

__all__ = ["command_of"]

# What has an option of its own, and what is said even if it is the default.
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


def command_of(config: TrainConfig | FewShotConfig) -> str:
    """The ``nsl`` that has this configuration; where its files are is left out."""
    command, options, always = _COMMANDS[config.kind]
    usual, words = _flat(type(config)()), list[str]()
    for name, value in _flat(config).items():
        if name in always or (value != usual.get(name) and name not in _NOT_OF_THE_RESULT):
            said = _literal(value)
            words += [f"--{name}", said] if name in options else ["--set", f"{name}={said}"]
    return f"{command} {join(words)}"


def _literal(value: object) -> str:
    """As ``--set`` reads it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and float(f"{value:g}") == value:
        return f"{value:g}"
    return f"{value}"


def _flat(config: TrainConfig | FewShotConfig) -> dict[str, object]:
    """Settings by name, those within others as ``options.width``."""
    flat: dict[str, object] = {}
    for name, value in config.to_dict().items():
        inside = value if isinstance(value, dict) else None
        flat |= {name: value} if inside is None else {f"{name}.{k}": v for k, v in inside.items()}
    return flat
