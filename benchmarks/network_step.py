"""What a similarity costs a whole network: a training step of the paper's CNN-9."""

from __future__ import annotations

import copy

import torch
from torch.utils.flop_counter import FlopCounterMode

import neural_similarity as ns

from .static_step import BATCH, SIDE, training_step
from .timing import Timing, race


def run(rounds: int) -> dict[str, list[Timing]]:
    torch.manual_seed(0)
    images = torch.randn(BATCH, 3, SIDE, SIDE).to(memory_format=torch.channels_last)
    labels = torch.randint(10, (BATCH,))
    plain = ns.create_model("cnn9", image_size=SIDE).to(memory_format=torch.channels_last)
    configurations = {
        "static diagonal": ns.StaticSimilarity("diagonal"),
        "dynamic diagonal, 8 hidden": ns.DynamicSimilarity(predictor=ns.SpherePredictor(hidden=8)),
        "dynamic diagonal, 64 hidden": ns.DynamicSimilarity("diagonal"),
        "dynamic unconstrained, 128": ns.DynamicSimilarity("unconstrained"),
    }
    networks = {"plain": plain}
    for name, configuration in configurations.items():
        model = ns.attach(copy.deepcopy(plain), configuration)
        networks[name] = model.to(memory_format=torch.channels_last)
    steps = {name: training_step(model, images, labels) for name, model in networks.items()}
    work = {name: multiply_adds(model, images[:2]) for name, model in networks.items()}
    timings = race(steps, rounds)
    per_work = [t.over(work[t.name] / work["plain"]) for t in timings]
    title = f"training step, CNN-9, batch {BATCH}, {SIDE}×{SIDE}"
    return {title: timings, f"{title}, per multiply-add of its convolutions": per_work}


def multiply_adds(model: torch.nn.Module, images: torch.Tensor) -> int:
    """Multiply-adds for these images: convolutions, predictors and similarities."""
    operator = torch.ops.neural_similarity.similarity_conv2d
    counter = FlopCounterMode(display=False, custom_mapping={operator: similarity_flops})
    with torch.no_grad(), counter:
        model(images)
    return counter.get_total_flops() // 2


def similarity_flops(input, weight, similarity, *_, out_shape, **__) -> int:
    """Two operations a multiply-add: those of the convolution, and of mixing its taps."""
    N, O, P, Q = out_shape
    taps = weight[2] * weight[3]
    mixing = taps * input[1] * (taps if len(similarity) == 5 else 1)
    return 2 * N * P * Q * (O * weight[1] * taps + mixing)
