"""What does a plain network cost that is as large, or as slow, as the dynamic one of Table 6?

A training step of the dynamic NSN, of the plain network, and of two widened plain ones, at the
sizes of the short budget of ``nsl reproduce``.
"""

from __future__ import annotations

from itertools import count

import torch
from torch import nn

import neural_similarity as ns

from .networks import BATCH, SIDE, channels_last, training_step
from .timing import Timing, race

WIDTH, HIDDEN = 32, 32
BASE_CLASSES = 64


def run(rounds: int) -> dict[str, list[Timing]]:
    torch.manual_seed(0)
    images = torch.randn(BATCH, 3, SIDE, SIDE).to(memory_format=torch.channels_last)
    labels = torch.randint(BASE_CLASSES, (BATCH,))
    steps = {
        name: training_step(channels_last(model), images, labels)
        for name, model in networks().items()
    }
    return {f"training step, CNN-4, batch {BATCH}, {SIDE}×{SIDE}": race(steps, rounds)}


def networks() -> dict[str, nn.Module]:
    """The four networks, by the names of the README."""
    dynamic = ns.DynamicSimilarity("diagonal", ns.SpherePredictor(hidden=HIDDEN))
    return {
        "dynamic NSN": _cnn4(WIDTH, dynamic),
        "plain": _cnn4(WIDTH),
        "as many parameters": _cnn4(_widened(dynamic)),
        "twice the width": _cnn4(2 * WIDTH),
    }


def _widened(dynamic: ns.DynamicSimilarity) -> int:
    """The smallest width at which a plain CNN-4 has as many parameters, classifier not counted."""
    size = _size(_cnn4(WIDTH, dynamic))
    return next(width for width in count(WIDTH) if _size(_cnn4(width)) >= size)


def _cnn4(width: int, similarity: ns.DynamicSimilarity | None = None) -> nn.Module:
    model: nn.Module = ns.create_model(
        "cnn4", BASE_CLASSES, similarity=similarity, width=width, image_size=SIDE
    )
    return model


def _size(model: nn.Module) -> int:
    classifier = model.get_submodule("classifier")
    return sum(p.numel() for p in model.parameters()) - sum(
        p.numel() for p in classifier.parameters()
    )
