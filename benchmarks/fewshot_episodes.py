"""Episodes per second, five-way five-shot, of methods that adapt a classifier or nothing.

The features of all images are computed once. The test set is a thousand images of CIFAR-FS's size.
The cost of an episode does not depend on their number; the cost of computing features does.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

import neural_similarity as ns
from neural_similarity.data import Episodes, MemorySet
from neural_similarity.fewshot import Evaluator, create_method

from .timing import Timing, race

METHODS = ("proto", "nearest", "r2d2", "finetune", "baseline_pp")
CLASSES, IMAGES, SIDE, COUNT = 20, 50, 32, 300


def run(rounds: int) -> dict[str, list[Timing]]:
    torch.manual_seed(0)
    dataset = noise()
    episodes = Episodes(dataset.labels, count=COUNT)
    scoring: dict[str, Callable[[], object]] = {}
    whole: dict[str, Callable[[], object]] = {}
    for name in METHODS:
        method = create_method(name)
        network = ns.create_model("cnn4", 64, image_size=SIDE)
        network = method.build(network, 64, (3, SIDE, SIDE)).eval()
        make = partial(Evaluator, method, network, dataset, (0.5,) * 3, (0.3,) * 3)
        ready = make()
        ready.run(episodes)
        scoring[name] = partial(ready.run, episodes)
        whole[name] = partial(embed_and_score, make, episodes)
    tables = {}
    for what, contestants in (("features ready", scoring), ("embedding included", whole)):
        timings = race(contestants, rounds)
        title = f"{COUNT} episodes, CNN-4 of 32 filters, {SIDE}×{SIDE}, {what}"
        tables[title] = timings
        tables[f"{title}: episodes a second"] = [
            Timing.of_ratio(t.name, 1000 * COUNT / t.milliseconds) for t in timings
        ]
    return tables


def embed_and_score(make: Callable[[], Evaluator], episodes: Episodes) -> None:
    make().run(episodes)


def noise() -> MemorySet:
    """Random images: the cost does not depend on what they show."""
    images = torch.randint(256, (CLASSES * IMAGES, 3, SIDE, SIDE), dtype=torch.uint8)
    labels = torch.arange(CLASSES).repeat_interleave(IMAGES)
    return MemorySet.of("noise", images, labels, [str(n) for n in range(CLASSES)])
