"""Tuning the static NSN on support sets: a plain loop over episodes, compared with the library.

The plain loop is what a user would write: autograd and ``torch.optim.SGD`` on the parametrised
network, one episode after the other. All take four epochs instead of the paper's hundred, which
would take twenty-five times as long, and classify one query of each class.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import neural_similarity as ns
from neural_similarity.convert import similarity_parameters
from neural_similarity.fewshot import FewShotNetwork, create_method, query_labels
from neural_similarity.ops.similarity_conv import dispatch

from .timing import Timing, race

N_WAY, SIDE, EPOCHS, EPISODES, ALONE = 5, 32, 4, 16, 2


def run(rounds: int) -> dict[str, list[Timing]]:
    tables = {}
    for n_shot in (5, 1):
        torch.manual_seed(0)
        method = create_method("static", epochs=EPOCHS)
        network = ns.create_model("cnn4", 64, image_size=SIDE)
        network = method.build(network, 64, (3, SIDE, SIDE)).eval()
        support = torch.randn(EPISODES, N_WAY, n_shot, 3, SIDE, SIDE)
        few, queries = support[:ALONE], support[:, :, 0]
        contestants: dict[str, Callable[[], object]] = {
            "plain loop": partial(plain_loop, method, network, few),
            "without compiled code": partial(uncompiled, method, network, support, queries),
            "library": partial(method.scores, network, support, queries),
        }
        episodes = [ALONE, EPISODES, EPISODES]
        timings = [
            replace(timing.over(count / ALONE), milliseconds=timing.milliseconds / count)
            for timing, count in zip(race(contestants, rounds), episodes, strict=True)
        ]
        title = f"{n_shot} shots, CNN-4 of 32 filters, {SIDE}×{SIDE}, {EPOCHS} epochs"
        tables[f"{title}: time an episode"] = timings
        tables[f"{title}: episodes a second, if there were 100 epochs"] = [
            Timing.of_ratio(timing.name, 1000 / timing.milliseconds * EPOCHS / 100)
            for timing in timings
        ]
    return tables


def plain_loop(method: Any, network: FewShotNetwork, support: Tensor) -> None:
    for images in support:
        tuned = deepcopy(network).requires_grad_(False)
        classifier = nn.Linear(network.num_features, N_WAY)
        parameters = [*similarity_parameters(tuned), *classifier.parameters()]
        for parameter in parameters:
            parameter.requires_grad_(True)
        sgd = torch.optim.SGD(
            parameters, method.lr, method.momentum, method.dampening, method.weight_decay
        )
        inputs, labels = images.flatten(0, 1), query_labels(N_WAY, images.shape[1])
        for rows in method.batches(len(inputs)):
            sgd.zero_grad()
            F.cross_entropy(classifier(tuned(inputs[rows])), labels[rows]).backward()
            sgd.step()
        with torch.no_grad():
            classifier(tuned(images[:, 0]))


def uncompiled(method: Any, network: FewShotNetwork, support: Tensor, query: Tensor) -> None:
    with dispatch.only("panels"):
        method.scores(network, support, query)
