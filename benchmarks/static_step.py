"""What an attached static similarity costs: a training step, and inference once merged."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

import neural_similarity as ns

from .networks import BATCH, SIDE, channels_last, training_step
from .timing import Timing, race

STRUCTURES = ("diagonal", "unconstrained", "orthogonal", "kernel_shape")


def run(rounds: int) -> dict[str, list[Timing]]:
    torch.manual_seed(0)
    images = torch.randn(BATCH, 3, SIDE, SIDE).to(memory_format=torch.channels_last)
    labels = torch.randint(10, (BATCH,))
    plain = channels_last(ns.create_model("cnn9", image_size=SIDE))
    networks = {"plain": plain}
    for structure in STRUCTURES:
        model = copy.deepcopy(plain)
        networks[structure] = ns.attach(model, ns.StaticSimilarity(structure))
    steps = {name: training_step(model, images, labels) for name, model in networks.items()}
    training = race(steps, rounds)
    inference = {
        "plain": inference_step(plain, images),
        "merged": inference_step(ns.merge(networks["unconstrained"]), images),
    }
    return {
        f"training step, CNN-9, batch {BATCH}, {SIDE}×{SIDE}": training,
        "inference, plain network and merged network": race(inference, rounds),
    }


def inference_step(model: nn.Module, images: Tensor) -> Callable[[], object]:
    model.eval()

    @torch.no_grad()
    def step() -> object:
        return model(images)

    return step
