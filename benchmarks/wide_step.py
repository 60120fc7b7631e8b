"""Table 6's first question: what does a plain network cost that is as large, or as slow?

A training step of the dynamic NSN, of the plain network, and of the two widened ones: the networks
of the rows themselves, at the short budget.
"""

from __future__ import annotations

import torch

from experiments.layout import channels_last
from experiments.tables.table6 import ON_CIFAR_FS
from neural_similarity.train.build import build_model

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
        model = build_model(ON_CIFAR_FS.row(row).training("short"), BASE_CLASSES, 3, SIDE)
        steps[name] = training_step(channels_last(model), images, labels)
    return {f"training step, CNN-4, batch {BATCH}, {SIDE}×{SIDE}": race(steps, rounds)}
