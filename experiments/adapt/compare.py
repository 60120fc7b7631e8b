"""Accuracies of every head and of finetuning, on the same tasks.

Run: ``python -m experiments.adapt --photos DIR``. One JSON file per pool, backbone, number of
ways and number of shots is written to ``experiments/results/adapt``; what is there is not repeated.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from statistics import fmean
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from neural_similarity.adapt import (
    METHODS,
    StaticAdapter,
    TrainingImages,
    can_adapt,
    cross_validate,
    make_adapter,
    share_fits,
)

from .finetuning import RATES, WAYS, BelowLastBlocks, finetune
from .pools import Draw, draws

__all__ = [
    "choose_rates",
    "compare_finetuning",
    "compare_heads",
    "compare_static",
    "reference_names",
]

Accuracies = dict[str, list[float]]
_REFERENCES = {"scikit-learn, C=1": 1.0, "scikit-learn, C=30, unit length": 30.0}


def reference_names() -> list[str]:
    return list(_REFERENCES)


def compare_heads(
    data: TrainingImages, n_way: int, n_shot: int, tasks: range, skip: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Every method of ``nsl adapt``, the automatic choice, and scikit-learn's regression.

    The automatic choice gets the training images alone; its own estimate is recorded as well.
    """
    names = [m for m in METHODS if m not in skip and can_adapt(m, data.backbone) is None]
    accuracies: Accuracies = {name: [] for name in (*names, "auto", *_REFERENCES)}
    seconds: dict[str, list[float]] = {name: [] for name in accuracies}
    estimates: list[float | None] = []
    inside: list[bool | None] = []
    for draw in draws(data, n_way, n_shot, tasks):
        part = data.subset(draw.rows, draw.labels)
        train, test = torch.arange(draw.n_train), torch.arange(draw.n_train, len(part))
        correct: dict[str, float] = {}
        for name in names:
            correct[name], duration = _timed(_head(name, part, train, test))
            seconds[name].append(duration)
        validation, duration = _timed(_choice(names, data, draw))
        seconds["auto"].append(duration)
        correct["auto"] = correct[validation.method]
        estimates.append(validation.accuracy)
        interval = validation.interval
        inside.append(interval and interval[0] <= correct["auto"] <= interval[1])
        for name, strength in _REFERENCES.items():
            correct[name], duration = _timed(_sklearn(part, draw, strength))
            seconds[name].append(duration)
        for name, value in correct.items():
            accuracies[name].append(value)
    return {
        "accuracies": accuracies,
        "seconds": {name: fmean(values) for name, values in seconds.items()},
        "estimates": estimates,
        "inside_interval": inside,
    }


def compare_static(whole: StaticAdapter, n_way: int, n_shot: int, tasks: range) -> dict[str, Any]:
    """The method ``static``; its adapter of the whole pool has the maps below the tuned layers."""
    accuracies, seconds, parameters = [], [], 0
    for draw in draws(whole.data, n_way, n_shot, tasks):
        adapter = whole.subset(draw.rows, draw.labels)
        rows = torch.arange(len(draw.rows))
        start = time.perf_counter()
        learned = adapter.fit(rows[: draw.n_train])
        seconds.append(time.perf_counter() - start)
        scores = adapter.scores(learned, rows[draw.n_train :])
        accuracies.append((scores.argmax(1) == draw.labels[draw.n_train :]).float().mean().item())
        parameters = sum(tensor.numel() for tensor in learned.values())
    return {
        "accuracies": {"static": accuracies},
        "seconds": {"static": fmean(seconds)},
        "parameters": {"static": parameters},
    }


def compare_finetuning(
    below: BelowLastBlocks, data: TrainingImages, n_way: int, n_shot: int, tasks: range,
    rates: dict[str, float],
) -> dict[str, Any]:  # fmt: skip
    """Finetuning in several ways, at the learning rates of :func:`choose_rates`."""
    accuracies: Accuracies = {}
    parameters, seconds = {}, {}
    for way, rate in rates.items():
        start = time.perf_counter()
        accuracies[way], parameters[way] = _finetuned(way, below, data, n_way, n_shot, tasks, rate)
        seconds[way] = (time.perf_counter() - start) / len(tasks)
    return {
        "accuracies": accuracies,
        "seconds": seconds,
        "rates": rates,
        "parameters": parameters,
    }


def choose_rates(
    below: BelowLastBlocks, data: TrainingImages, n_way: int, n_shot: int
) -> dict[str, float]:
    """For each way to finetune, the learning rate that is best on three tasks of these classes."""
    rates = {}
    for way in WAYS:
        trials = {
            rate: fmean(_finetuned(way, below, data, n_way, n_shot, range(3), rate)[0])
            for rate in RATES
        }
        rates[way] = max(trials, key=lambda rate: trials[rate])
    return rates


def _finetuned(
    way: str, below: BelowLastBlocks, data: TrainingImages, n_way: int, n_shot: int, tasks: range,
    rate: float,
) -> tuple[list[float], int]:  # fmt: skip
    results, tuned = [], 0
    for draw in draws(data, n_way, n_shot, tasks):
        correct, tuned = finetune(way, below, draw.rows, draw.labels, draw.n_train, rate)
        results.append(correct)
    return results, tuned


def _head(name: str, part: TrainingImages, train: Tensor, test: Tensor) -> Callable[[], float]:
    def measure() -> float:
        adapter = make_adapter(name, part)
        scores = adapter.scores(adapter.fit(train), test)
        return (scores.argmax(1) == part.labels[test]).float().mean().item()

    return measure


def _choice(names: list[str], data: TrainingImages, draw: Draw) -> Callable[[], Any]:
    def choose() -> Any:
        labels = draw.labels[: draw.n_train]
        images = data.subset(draw.rows[: draw.n_train], labels)
        adapters = {name: make_adapter(name, images) for name in names}
        share_fits(adapters)
        return cross_validate(adapters, labels, images.n_way, folds=5, seed=0)

    return choose


def _sklearn(part: TrainingImages, draw: Draw, strength: float) -> Callable[[], float]:
    def measure() -> float:
        from sklearn.linear_model import LogisticRegression

        features = part.features if strength == 1 else F.normalize(part.features)
        X, y = features.double().numpy(), part.labels.numpy()
        n = draw.n_train
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it may stop before it has converged
            model = LogisticRegression(C=strength, max_iter=1000).fit(X[:n], y[:n])
        return float(model.score(X[n:], y[n:]))

    return measure


def _timed(function: Callable[[], Any]) -> tuple[Any, float]:
    start = time.perf_counter()
    result = function()
    return result, time.perf_counter() - start
