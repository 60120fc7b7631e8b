"""Which run starts from which, in which order they are trained, and which share a network."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path

from .. import _check
from ..errors import RunError
from ..train.settings import NETWORK_SETTINGS, SIMILARITY_SETTINGS
from .config import FewShotConfig
from .methods.base import Method

__all__ = ["PLAIN", "add_backbones", "order_runs"]

PLAIN = "plain"
"""The name of the run whose plain network methods share."""

_NETWORK = (*NETWORK_SETTINGS, "data", "image_size")
_NOT_TRAINED_WITH = {
    "method", "method_options", "backbone", "similarity", *SIMILARITY_SETTINGS, "batch_norm",
    "episodes", "tasks", "epoch_steps", "train_way", "train_shot", "train_query", "data_dir",
    "device", "threads", "log_every", "checkpoint_minutes",
}  # fmt: skip
"""Settings that do not affect how a plain network is trained."""


def order_runs(
    configs: Mapping[str, FewShotConfig],
    starts: Mapping[str, str] | None = None,
    only: Iterable[str] | None = None,
) -> dict[str, str | None]:
    """Runs in an order in which each comes after the run whose backbone it starts with.

    Each method defines which method it starts from: its run starts from that method's first run. A
    configuration with a ``backbone`` starts from that and needs no other run.

    Args:
        configs: runs by name.
        starts: runs that start from another run by choice, and which run that is.
        only: these runs and those that they start from; None is all.

    Returns:
        For every run the name of the run that it starts from, or None.

    Example:
        >>> methods = ("meta_dynamic", "nearest", "finetune", "dynamic")
        >>> runs = {method: FewShotConfig(method=method) for method in methods}
        >>> order_runs(runs, starts={"nearest": "finetune"})
        {'dynamic': None, 'meta_dynamic': 'dynamic', 'finetune': None, 'nearest': 'finetune'}
    """
    order: dict[str, str | None] = {}

    def add(name: str, waiting: tuple[str, ...] = ()) -> None:
        _check.known_name("order_runs", "run", name, configs)
        if name in waiting:
            raise RunError(
                f"order_runs: expected runs that start from earlier ones, got a cycle: "
                f"{' from '.join((*waiting, name))}. One of them must not start from another run."
            )
        if name not in order:
            start = (starts or {}).get(name) or _start_of_method(configs, name)
            if start is not None:
                add(start, (*waiting, name))
            order[name] = start

    for name in configs if only is None else only:
        add(name)
    return order


def add_backbones(configs: Mapping[str, FewShotConfig], folder: Path) -> dict[str, FewShotConfig]:
    """Every run that is needed, in order, each with the backbone that it starts from.

    Args:
        configs: the requested runs.
        folder: an absolute path, so that a plan can continue from another working directory.
    """
    runs, starts = dict(configs), dict[str, str]()
    sharing = [name for name, config in configs.items() if _is_plain(config)]
    starting = [name for name, config in configs.items() if _starts_plain(config)]
    if starting or len(sharing) > 1:
        _check_same(configs, sharing, [f.name for f in fields(FewShotConfig)], _NOT_TRAINED_WITH)
        _check_same(configs, sharing + starting, _NETWORK)
        first = configs[(sharing + starting)[0]]
        plain = replace(
            first, method="finetune", method_options={}, backbone=None, similarity="method",
            batch_norm="running", episodes=FewShotConfig().episodes,
            head_rate=first.head_rate if sharing else FewShotConfig().head_rate,
        )  # fmt: skip
        trained = {name: replace(configs[name], epochs=0.0, steps=None) for name in sharing}
        runs = {PLAIN: plain, **configs, **trained}
        starts = dict.fromkeys(sharing + starting, PLAIN)
    for name, config in configs.items():
        source_method = config.build_method().starts_from
        if source_method is not None and config.backbone is None and name not in starts:
            usual = FewShotConfig().head_rate
            source = replace(config, method=source_method, method_options={}, head_rate=usual)
            runs.setdefault(_source(configs, source_method), source)
    return {
        name: runs[name] if start is None else replace(runs[name], backbone=str(folder / start))
        for name, start in order_runs(runs, starts).items()
    }


def _start_of_method(configs: Mapping[str, FewShotConfig], name: str) -> str | None:
    """The run that a run starts from because of its method."""
    source_method = configs[name].build_method().starts_from
    if source_method is None or configs[name].backbone is not None:
        return None
    for other, config in configs.items():
        if config.method == source_method:
            return other
    raise RunError(
        f"order_runs: expected a run of {source_method!r} for {name!r} to start from, got none. "
        f"Add one, or give {name!r} a backbone."
    )


def _source(configs: Mapping[str, FewShotConfig], method: str) -> str:
    """The name of the run of this method: one of ``configs``, or one to be added."""
    names = [name for name, config in configs.items() if config.method == method]
    if not names and method in configs:
        raise RunError(
            f"plan_runs: expected the name {method!r} for a run of that method, got this name for "
            f"a run of {configs[method].method!r}. Choose another name."
        )
    return names[0] if names else method


def _is_plain(config: FewShotConfig) -> bool:
    """Whether training yields a plain network with a linear classifier, whatever tests do later."""
    method = type(config.build_method())
    usual = method.loss is Method.loss and method.head is Method.head
    plain = config.similarity_kind() == "none" or not method.trains_similarity
    return method.trains_on == "images" and usual and plain and config.backbone is None


def _starts_plain(config: FewShotConfig) -> bool:
    """Whether the method starts from another that trains a plain network."""
    source_method = config.build_method().starts_from
    if source_method is None or config.backbone is not None:
        return False
    return _is_plain(replace(config, method=source_method, method_options={}))


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
