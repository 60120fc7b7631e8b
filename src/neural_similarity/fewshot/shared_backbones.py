"""Which networks have to be trained before the methods that start from them, and who shares one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path

from ..errors import RunError
from .config import FewShotConfig
from .methods.base import Method

__all__ = ["PLAIN", "add_backbones"]

PLAIN = "plain"
"""The name of the run of the plain network that methods share."""

_NETWORK = ("model", "options", "data", "image_size")
_NOT_TRAINED_WITH = {
    "method", "method_options", "backbone", "similarity", "structure", "structure_options", "scope",
    "predictor", "predictor_options", "hidden", "shared", "batch_norm", "episodes", "tasks",
    "epoch_steps", "train_way", "train_shot", "train_query", "data_dir", "device", "threads",
    "log_every", "checkpoint_minutes",
}  # fmt: skip
"""Settings that do not decide how a plain network is trained."""


def add_backbones(configs: Mapping[str, FewShotConfig], folder: Path) -> dict[str, FewShotConfig]:
    """Every run that is needed, in order, each with the backbone that it starts with.

    Args:
        configs: what the user wants.
        folder: an absolute path, so that a plan can go on from another working directory.
    """
    plan: dict[str, FewShotConfig] = {}
    sharing = [name for name, config in configs.items() if _is_plain(config)]
    starting = [name for name, config in configs.items() if _starts_plain(config)]
    if starting or len(sharing) > 1:
        _check_same(configs, sharing, [f.name for f in fields(FewShotConfig)], _NOT_TRAINED_WITH)
        _check_same(configs, sharing + starting, _NETWORK)
        first = configs[(sharing + starting)[0]]
        plan[PLAIN] = replace(
            first, method="finetune", method_options={}, backbone=None, similarity="method",
            batch_norm="running", episodes=FewShotConfig().episodes,
        )  # fmt: skip
    for name, config in configs.items():
        needed = config.build_method().starts_from
        if PLAIN in plan and name in sharing:
            plan[name] = replace(config, backbone=str(folder / PLAIN), epochs=0.0, steps=None)
        elif name in starting:
            plan[name] = replace(config, backbone=str(folder / PLAIN))
        elif config.backbone is None and needed is not None:
            source = _source(configs, needed)
            if source not in plan:
                own = replace(config, method=needed, method_options={})
                plan[source] = configs.get(source, own)
            plan[name] = replace(config, backbone=str(folder / source))
        elif name not in plan:
            plan[name] = config
    return plan


def _source(configs: Mapping[str, FewShotConfig], method: str) -> str:
    """The name of the run of this method: one of ``configs``, or one to be added."""
    names = [name for name, config in configs.items() if config.method == method]
    if not names and method in configs:
        raise RunError(
            f"plan_runs: expected the name {method!r} for a run of that method, got it for "
            f"{configs[method].method!r}. Choose another name."
        )
    return names[0] if names else method


def _is_plain(config: FewShotConfig) -> bool:
    """Whether training gives a plain network with a linear classifier, whatever tests do later."""
    method = type(config.build_method())
    usual = method.loss is Method.loss and method.head is Method.head
    plain = config.similarity_kind() != "dynamic" and config.backbone is None
    return method.trains_on == "images" and usual and plain


def _starts_plain(config: FewShotConfig) -> bool:
    """Whether the method starts from another that trains a plain network."""
    needed = config.build_method().starts_from
    if needed is None or config.backbone is not None:
        return False
    return _is_plain(replace(config, method=needed, method_options={}))


def _check_same(
    configs: Mapping[str, FewShotConfig],
    names: Sequence[str],
    settings: Iterable[str],
    free: Iterable[str] = (),
) -> None:
    """Raise unless runs that share a network agree on these settings."""
    for setting in (s for s in settings if s not in set(free)):
        for name in names[1:]:
            ours, theirs = (getattr(configs[each], setting) for each in (names[0], name))
            if ours != theirs:
                raise RunError(
                    f"plan_runs: expected the same {setting} for {names[0]!r} and {name!r}, got "
                    f"{ours!r} and {theirs!r}. They share one plain network. Give them the same "
                    f"{setting}, or plan them into different folders."
                )
