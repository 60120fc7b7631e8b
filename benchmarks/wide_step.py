"""Table 6's first question: what does a plain network cost that is as large, or as slow?

A training step of the dynamic NSN, of the plain network, and of the two widened ones: the networks
of the rows themselves, at the short budget.
"""

from __future__ import annotations

import torch
from torch import nn

import neural_similarity as ns
from experiments.layout import channels_last
from experiments.table6 import ON_CIFAR_FS
from neural_similarity.fewshot import FewShotConfig

from .static_step import BATCH, SIDE, training_step
from .timing import Timing, race

ROWS = {
    "dynamic NSN": "dynamic",
    "plain": "finetune",
    "as many parameters": "wide-parameters",
    "twice the width": "wide-time",
}
BASE_CLASSES = 64


def run(rounds: int) -> dict[str, list[Timing]]:
    torch.manual_seed(0)
    images = torch.randn(BATCH, 3, SIDE, SIDE).to(memory_format=torch.channels_last)
    labels = torch.randint(BASE_CLASSES, (BATCH,))
    steps = {}
    for name, row in ROWS.items():
        config = ON_CIFAR_FS.row(row).config("short")
        assert isinstance(config, FewShotConfig)
        steps[name] = training_step(network(config), images, labels)
    return {f"training step, CNN-4, batch {BATCH}, {SIDE}×{SIDE}": race(steps, rounds)}


def network(config: FewShotConfig) -> nn.Module:
    """The network of a row, before it has seen anything."""
    similarity = None
    if config.method == "dynamic":
        predictor = ns.SpherePredictor(hidden=config.hidden or 64)
        similarity = ns.DynamicSimilarity("diagonal", predictor)
    model = ns.create_model(
        config.model, BASE_CLASSES, similarity=similarity, image_size=SIDE, **config.options
    )
    return channels_last(model)
