"""What an attached static similarity costs: a training step, and inference once merged."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import neural_similarity as ns
from experiments.layout import channels_last

from .timing import Timing, race

STRUCTURES = ("diagonal", "unconstrained", "orthogonal", "kernel_shape")
BATCH, SIDE = 128, 32


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


def training_step(model: nn.Module, images: Tensor, labels: Tensor) -> Callable[[], None]:
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def step() -> None:
        optimiser.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimiser.step()

    return step


def inference_step(model: nn.Module, images: Tensor) -> Callable[[], object]:
    model.eval()

    @torch.no_grad()
    def step() -> object:
        return model(images)

    return step
