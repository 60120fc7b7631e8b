"""Configurations of few-shot runs from a table of settings, given by a command or a file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..train.settings import NETWORK_SETTINGS, SIMILARITY_SETTINGS
from .config import FewShotConfig
from .runs import FewShotRun

__all__ = ["DEMO", "configs_from_settings", "stored_config"]

_SHORT_TUNING = {"batch_size": None, "epochs": 20, "lr": 0.1}
_SHORT_EPISODES = {"train_way": 20, "steps": 100, "epoch_steps": 50}
DEMO: dict[str, dict[str, Any]] = {
    "nearest": {},
    "finetune": {"method_options": _SHORT_TUNING},
    "static": {"method_options": _SHORT_TUNING, "episodes": 60},
    "dynamic": {"method_options": _SHORT_TUNING, "hidden": 8},
    "meta_static": {"steps": 40, "epoch_steps": 40, "val_episodes": 30, "episodes": 60},
    "proto": _SHORT_EPISODES,
    "r2d2": _SHORT_EPISODES,
}
"""The methods that are compared if no settings are given. Tuning is short, because for the static
network it passes through all layers; methods compared with it are tuned for equally long."""
_DEMO_SETTINGS = {
    "data": "glyphs", "image_size": 20, "options": {"width": 16}, "epochs": 4.0, "lr": 0.01,
    "log_every": 10, "val_episodes": 100, "threads": 1,
}  # fmt: skip
"""Images are so small that a second thread would mostly wait."""
_KEEPS_DEMO = {"data_dir", "threads", "seed", "episodes"}
_FROM_BACKBONE = (*NETWORK_SETTINGS, "data", "data_dir", "image_size", *SIMILARITY_SETTINGS)


def configs_from_settings(settings: Mapping[str, Any]) -> dict[str, FewShotConfig]:
    """A configuration for every method named in the settings.

    ``method`` may name several, separated by commas; the default is ``proto``. With a
    ``backbone``, network and data are those of its run, unless set otherwise. Without settings, or
    with only ``data_dir``, ``threads``, ``seed`` and ``episodes``, the methods are those of
    :data:`DEMO`.

    >>> list(configs_from_settings({"method": "proto, ridge", "data": "glyphs"}))
    ['proto', 'ridge']
    """
    if not settings.keys() - _KEEPS_DEMO:
        return {
            name: FewShotConfig.from_dict({**_DEMO_SETTINGS, **own, **settings, "method": name})
            for name, own in DEMO.items()
        }
    names = [name.strip() for name in str(settings.get("method", "proto")).split(",")]
    inherited = {}
    if settings.get("backbone") is not None:
        theirs = FewShotRun.open(settings["backbone"]).config.to_dict()
        inherited = {name: theirs[name] for name in _FROM_BACKBONE}
    return {
        name: FewShotConfig.from_dict({**inherited, **settings, "method": name}) for name in names
    }


def stored_config(folder: Path, settings: Mapping[str, Any]) -> FewShotConfig | None:
    """The configuration of the run in a folder, to continue it; settings replace stored values.

    None if the settings name a method, or if the folder has no run yet and there are settings to
    start one.
    """
    if "method" in settings or (settings and not (folder / "config.json").is_file()):
        return None
    stored_settings = FewShotRun.open(folder).config.to_dict()
    return FewShotConfig.from_dict({**stored_settings, **settings})
