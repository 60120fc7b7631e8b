"""How many images per second a network trains on, input included.

It is compared with an ideal: a plain CNN-9 that is wide enough to have the same number of
multiply-adds, so that all work is done as fast as PyTorch's own convolutions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import neural_similarity as ns
from neural_similarity.convert import multiply_adds
from neural_similarity.data import Augment, MemorySet

from .input_pipeline import endless, loader, noise
from .networks import BATCH, SIDE, channels_last
from .timing import Timing, race

NETWORKS: dict[str, ns.StaticSimilarity | ns.DynamicSimilarity | None] = {
    "plain": None,
    "static diagonal": ns.StaticSimilarity("diagonal"),
    "static unconstrained": ns.StaticSimilarity("unconstrained"),
    "dynamic diagonal, 8 hidden": ns.DynamicSimilarity(predictor=ns.SpherePredictor(hidden=8)),
    "dynamic diagonal, 64 hidden": ns.DynamicSimilarity("diagonal"),
    "dynamic unconstrained, 128": ns.DynamicSimilarity("unconstrained"),
}


def run(rounds: int) -> dict[str, list[Timing]]:
    torch.manual_seed(0)
    models = {name: network(similarity=similarity) for name, similarity in NETWORKS.items()}
    work = {name: count(model) for name, model in models.items()}
    ideals = {}
    for name in NETWORKS:
        if work[name] > 1.05 * work["plain"]:
            width = ideal_width(work[name])
            ideals[name] = f"ideal: plain, width {width}"
            models[ideals[name]] = network(width=width)
    images = noise()
    timings = race({name: step(model, images) for name, model in models.items()}, rounds)
    took = {t.name: t.milliseconds for t in timings}

    def share(name: str) -> float:
        ideal = ideals.get(name, "plain")
        # A width is a whole number, so the multiply-adds of the ideal are only nearly equal.
        return took[ideal] * work[name] / count(models[ideal]) / took[name]

    title = f"training, CNN-9, batch {BATCH}, {SIDE}×{SIDE}, crop and flip included"
    speeds = [Timing.of_ratio(name, 1000 * BATCH / took[name]) for name in models]
    shares = [Timing.of_ratio(name, share(name)) for name in NETWORKS]
    return {
        title: timings,
        f"{title}: images a second": speeds,
        f"{title}: share of the ideal": shares,
    }


def network(**options: Any) -> nn.Module:
    return channels_last(ns.create_model("cnn9", image_size=SIDE, **options))


def step(model: nn.Module, images: MemorySet) -> Callable[[], None]:
    batches = endless(loader(images, Augment()))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def run_step() -> None:
        batch, labels = next(batches)
        optimiser.zero_grad()
        F.cross_entropy(model(batch), labels).backward()
        optimiser.step()

    return run_step


def ideal_width(work: int) -> int:
    """The width at which a plain CNN-9 is nearest to this number of multiply-adds."""
    return min(range(32, 160), key=lambda width: abs(count(network(width=width)) - work))


def count(model: nn.Module) -> int:
    return sum(multiply_adds(model, torch.zeros(1, 3, SIDE, SIDE)).values())
