"""A training step of second-order MAML on CNN-4, compared with the same loop in ``higher``.

``higher`` (facebookresearch/higher) is not a dependency: without it only our step is measured.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from types import ModuleType

import torch
import torch.nn.functional as F
from torch import nn

import neural_similarity as ns
from neural_similarity.fewshot import FewShotNetwork, Tasks, as_tasks, create_method, query_labels

from .timing import Timing, race

N_WAY, N_QUERY, TASKS, INNER_STEPS, RATE = 5, 15, 4, 5, 0.01


def run(rounds: int) -> dict[str, list[Timing]]:
    higher = _higher()
    tables = {}
    for side in (32, 84):
        for n_shot in (1, 5):
            batch = tasks(n_shot, side)
            contestants = {"ours": ours(batch, side)}
            if higher is not None:
                contestants = {"higher": theirs(higher, batch, side), **contestants}
            title = f"{TASKS} tasks, {N_WAY}-way {n_shot}-shot, CNN-4 of 32 filters, {side}×{side}"
            tables[title] = race(contestants, rounds)
    return tables


def tasks(n_shot: int, side: int) -> Tasks:
    torch.manual_seed(0)
    support = torch.randn(TASKS, N_WAY, n_shot, 3, side, side)
    return as_tasks(support, torch.randn(TASKS, N_WAY, N_QUERY, 3, side, side))


def ours(batch: Tasks, side: int) -> Callable[[], None]:
    method = create_method("maml", inner_steps=INNER_STEPS, inner_lr=RATE)
    network = network_of(side).train()
    optimiser = torch.optim.Adam(network.parameters())

    def step() -> None:
        optimiser.zero_grad()
        method.loss(network, batch).backward()
        optimiser.step()

    return step


def theirs(higher: ModuleType, batch: Tasks, side: int) -> Callable[[], None]:
    features = network_of(side)
    network = nn.Sequential(features, features.head).train()
    optimiser = torch.optim.Adam(network.parameters())
    inner = torch.optim.SGD(network.parameters(), lr=RATE)

    def step() -> None:
        optimiser.zero_grad()
        for support, query, answers in zip(*batch, strict=True):
            labels = query_labels(*support.shape[:2])
            with higher.innerloop_ctx(network, inner, copy_initial_weights=False) as (fast, steps):
                for _ in range(INNER_STEPS):
                    steps.step(F.cross_entropy(fast(support.flatten(0, 1)), labels))
                (F.cross_entropy(fast(query), answers) / TASKS).backward()
        optimiser.step()

    return step


def network_of(side: int) -> FewShotNetwork:
    torch.manual_seed(1)
    network = ns.create_model("cnn4", N_WAY, image_size=side)
    return create_method("maml").build(network, N_WAY, (3, side, side))


def _higher() -> ModuleType | None:
    try:
        return import_module("higher")
    except ImportError:
        print("  higher is not installed: only our step is measured")
        return None
