"""Tuning the static NSN on support sets: one episode after another, or several at once.

It runs four epochs instead of the paper's hundred, which would take twenty-five times as long.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from unittest.mock import patch

import torch

import neural_similarity as ns
from neural_similarity.fewshot import create_method
from neural_similarity.fewshot.inner_loop import ManyEpisodes

from .timing import Timing, race

N_WAY, SIDE, EPISODES = 5, 32, 8


def run(rounds: int) -> dict[str, list[Timing]]:
    torch.manual_seed(0)
    method = create_method("static", epochs=4)
    network = ns.create_model("cnn4", 64, image_size=SIDE)
    network = method.build(network, 64, (3, SIDE, SIDE)).eval()
    tables = {}
    for n_shot in (5, 1):
        support = torch.randn(EPISODES, N_WAY, n_shot, 3, SIDE, SIDE)
        score = partial(method.scores, network)
        contestants: dict[str, Callable[[], object]] = {
            "one by one": partial(alone, score, support)
        }
        for count in (2, 4, 8):
            contestants[f"{count} at a time"] = partial(in_parts, score, support, count)
        title = (
            f"{EPISODES} episodes of {n_shot} shots, CNN-4 of 32 filters, {SIDE}×{SIDE}, 4 epochs"
        )
        tables[title] = race(contestants, rounds)
    return tables


def in_parts(score: Callable[..., object], support: torch.Tensor, count: int) -> None:
    for part in range(0, len(support), count):
        rows = slice(part, part + count)
        score(support=support[rows], query=support[rows, :, 0])


def alone(score: Callable[..., object], support: torch.Tensor) -> None:
    with patch.object(ManyEpisodes, "works_for", return_value=False):
        in_parts(score, support, 1)
