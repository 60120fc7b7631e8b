"""Equal cost: does a similarity buy more than width does?

Plain networks of several widths give a curve of accuracy versus cost. Every other network has the
width of one of them and a similarity; it is a point above the curve, on it or below it. Cost is
parameters, multiply-adds, or time per training step (``experiments/costs.py``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from neural_similarity.fewshot import FewShotConfig
from neural_similarity.train import TrainConfig

from .base import Row, Table

__all__ = ["PLAIN", "PLANNED", "STUDIES", "member_names", "member_settings"]

PLAIN = "plain-"
"""How the names of plain networks begin; their width follows."""

_FIRST_STUDY = "equal-cost-cifar-fs"

_FEWSHOT = FewShotConfig(
    method="nearest", method_options={"means": True}, data="cifar-fs", options={"width": 32},
    epochs=8, schedule="onecycle", lr=0.002, episodes=1000,
)  # fmt: skip
_FEWSHOT_SMOKE = replace(
    _FEWSHOT, data="glyphs", options={"width": 8}, steps=3, epoch_steps=2, n_query=5,
    val_episodes=2, episodes=4, log_every=1,
)  # fmt: skip
_CNN9 = TrainConfig(
    model="cnn9", data="cifar10", options={"width": 16, "hidden": 128}, epochs=4,
    schedule="onecycle", lr=0.03, log_every=50,
)  # fmt: skip
_RESNET = replace(_CNN9, model="resnet_cifar", options={"widths": [16, 32, 64]}, lr=0.1)


def _smoke(config: TrainConfig) -> TrainConfig:
    options = {name: _times(value, 0.25) for name, value in config.options.items()}
    return replace(config, data="digits", options=options, steps=3, batch_size=32, log_every=1)


_SOURCES = {
    "patch": "position, from its patch",
    "pixel": "position, from its pixel",
    "image": "image",
}
_SPANS = {"taps": "taps", "channels": "channels", "both": "taps and channels"}


def _members() -> dict[str, tuple[str, dict[str, Any]]]:
    """Title and changed settings of every network with a similarity, by name."""
    members: dict[str, tuple[str, dict[str, Any]]] = {
        "static-channel": (
            "Static, a matrix for each channel (DO-Conv)",
            {"similarity": "static", "structure": "unconstrained", "scope": "channel"},
        )
    }
    for source, unit in _SOURCES.items():
        for over, words in _SPANS.items():
            for hidden in (4, 8, 16):
                settings = {"similarity": "dynamic", "predictor": source, "over": over}
                members[f"{source}-{over}-{hidden}"] = (
                    f"One M per {unit}, over {words}, {hidden} hidden units",
                    {**settings, "hidden": hidden},
                )
    for gate in ("none", "tanh"):
        members[f"image-both-8-{gate}"] = (
            f"One M per image, over taps and channels, 8 hidden units, gate {gate}",
            {
                "similarity": "dynamic", "predictor": "image", "over": "both", "hidden": 8,
                "predictor_options": {"gate": gate},
            },
        )  # fmt: skip
    return members


def member_names() -> list[str]:
    """The networks with a similarity."""
    return list(_members())


def member_settings(name: str) -> dict[str, Any]:
    """The settings in which a network with a similarity differs from the plain one."""
    return _members()[name][1]


def _study(
    name: str, title: str, widths: Sequence[int], short: TrainConfig | FewShotConfig,
    smoke: TrainConfig | FewShotConfig, epochs: float, words: str,
) -> Table:  # fmt: skip
    """A table with a row for every width and every member; members have the second width."""
    budgets: Mapping[str, Any] = {
        "smoke": smoke, "short": short, "paper": replace(short, epochs=epochs),
    }  # fmt: skip
    usual = _first_width(short)
    rows = [
        Row(
            f"{PLAIN}{width}", f"Plain, width {width}", _widened(width / usual), name, budgets,
        )
        for width in widths
    ] + [
        Row(member, member_title, _with(settings), name, budgets)
        for member, (member_title, settings) in _members().items()
    ]  # fmt: skip
    return Table(
        name=name,
        title=title,
        rows=tuple(rows),
        metric="accuracy" if isinstance(short, FewShotConfig) else "error",
        baseline=f"{PLAIN}{usual}",
        paper={},
        budgets={"smoke": "three steps on embedded data", "short": words,
                 "paper": f"the same for {epochs:g} epochs"},
    )  # fmt: skip


def _first_width(config: TrainConfig | FewShotConfig) -> int:
    options = config.options
    return int(options["widths"][0] if "widths" in options else options["width"])


def _widened(factor: float) -> Any:
    def change(base: TrainConfig | FewShotConfig) -> TrainConfig | FewShotConfig:
        options = {name: _times(value, factor) for name, value in base.options.items()}
        return replace(base, options=options)

    return change


def _with(settings: dict[str, Any]) -> Any:
    return lambda base: replace(base, **settings)


def _times(value: Any, factor: float) -> Any:
    if isinstance(value, list):
        return [_times(one, factor) for one in value]
    return max(round(value * factor), 1)


_RESNET_WORDS = (
    "ResNet-20, 4 epochs, SGD with a learning rate of up to 0.1 in one cycle; networks with a "
    "similarity have width 16"
)
_CNN9_WORDS = (
    "CNN-9, 4 epochs, SGD with a learning rate of up to 0.03 in one cycle, the lower one of "
    "Table 4; networks with a similarity have width 16"
)

STUDIES: dict[str, Table] = {
    study.name: study
    for study in (
        _study(
            _FIRST_STUDY, "Equal cost: CNN-4 on CIFAR-FS", (24, 28, 32, 36, 40, 48),
            _FEWSHOT, _FEWSHOT_SMOKE, 60,
            "CNN-4, 8 epochs over the base classes, Adam with a learning rate of up to 0.002 in "
            "one cycle, 1,000 episodes, nearest class mean by cosine; networks with a similarity "
            "have width 32",
        ),
        _study(
            "equal-cost-cifar10", "Equal cost: CNN-9 on CIFAR-10", (12, 16, 20, 24, 28),
            _CNN9, _smoke(_CNN9), 60, _CNN9_WORDS,
        ),
        _study(
            "equal-cost-cifar100", "Equal cost: CNN-9 on CIFAR-100", (12, 16, 20, 24, 28),
            replace(_CNN9, data="cifar100"), _smoke(_CNN9), 60, _CNN9_WORDS,
        ),
        _study(
            "equal-cost-resnet", "Equal cost: ResNet-20 on CIFAR-10", (12, 16, 20, 24, 28),
            _RESNET, _smoke(_RESNET), 60, _RESNET_WORDS,
        ),
        _study(
            "equal-cost-resnet-cifar100", "Equal cost: ResNet-20 on CIFAR-100",
            (12, 16, 20, 24, 28), replace(_RESNET, data="cifar100"), _smoke(_RESNET), 60,
            _RESNET_WORDS,
        ),
    )
}  # fmt: skip
"""The data sets and networks of the study, by name."""

PLANNED: Mapping[str, tuple[str, ...]] = {
    name: ("image-channels-8", "image-both-8")
    if name == _FIRST_STUDY
    else ("image-channels-8", "image-both-8", "image-both-8-tanh")
    for name in STUDIES
}
"""Networks that were to get several seeds before they had a result in a study, by study.

The first study's come from a prototype, those of the others from the first study. Other networks
get more seeds if their first one is near or above the curve.
"""
