"""What a similarity costs a whole network: a training step of the paper's CNN-9."""

from __future__ import annotations

import copy

import torch

import neural_similarity as ns
from neural_similarity.convert import multiply_adds

from .networks import BATCH, SIDE, channels_last, training_step
from .timing import Timing, race


def run(rounds: int) -> dict[str, list[Timing]]:
    torch.manual_seed(0)
    images = torch.randn(BATCH, 3, SIDE, SIDE).to(memory_format=torch.channels_last)
    labels = torch.randint(10, (BATCH,))
    plain = channels_last(ns.create_model("cnn9", image_size=SIDE))
    configurations: dict[str, ns.StaticSimilarity | ns.DynamicSimilarity] = {
        "static diagonal": ns.StaticSimilarity("diagonal"),
        **{
            f"dynamic diagonal, {hidden} hidden": ns.DynamicSimilarity(
                predictor=ns.SpherePredictor(hidden=hidden)
            )
            for hidden in (8, 16)
        },
        "dynamic diagonal, 64 hidden": ns.DynamicSimilarity("diagonal"),
        "dynamic unconstrained, 128": ns.DynamicSimilarity("unconstrained"),
    }
    networks = {"plain": plain}
    for name, configuration in configurations.items():
        networks[name] = channels_last(ns.attach(copy.deepcopy(plain), configuration))
    steps = {name: training_step(model, images, labels) for name, model in networks.items()}
    work = {name: sum(multiply_adds(m, images[:1]).values()) for name, m in networks.items()}
    timings = race(steps, rounds)
    per_work = [t.over(work[t.name] / work["plain"]) for t in timings]
    title = f"training step, CNN-9, batch {BATCH}, {SIDE}×{SIDE}"
    return {title: timings, f"{title}, per multiply-add of its convolutions": per_work}
