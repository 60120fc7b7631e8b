"""A small backbone, episodes of random images, and every method, in float64."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import neural_similarity as ns
from neural_similarity.fewshot import FewShotNetwork, Method, create_method

IMAGE = (2, 8, 8)
N_WAY, N_SHOT, N_QUERY = 3, 2, 4


def backbone(similarity: str | None = None, **options: object) -> nn.Module:
    """Two stages; BatchNorm has statistics other than its initial ones."""
    small = {"width": 3, "growth": (1, 2), "depths": (1, 1), "hidden": None}
    model = ns.create_model("cnn9", 4, similarity, IMAGE[0], IMAGE[1], **(small | options))
    model.double().train()
    with torch.no_grad():
        for _ in range(3):
            model(1.5 * torch.randn(16, *IMAGE).double() + 0.3)
    return model.eval()


def network_of(method: Method, num_classes: int = N_WAY) -> FewShotNetwork:
    network = method.build(backbone(method.similarity), num_classes, IMAGE).eval()
    return with_base_mean(method, network)


def with_base_mean(method: Method, network: FewShotNetwork) -> FewShotNetwork:
    """The network with some mean feature of base images, if the method needs it."""
    if method.needs_base_mean:
        network.base_mean = 0.1 * torch.randn(network.num_features).double()
    return network


def episodes(count: int = 2, n_shot: int = N_SHOT) -> tuple[Tensor, Tensor]:
    """Images of the support ``(B, n_way, n_shot, ...)`` and of queries, class by class."""
    centres = torch.randn(count, N_WAY, 1, *IMAGE).double()
    support = centres + torch.randn(count, N_WAY, n_shot, *IMAGE).double()
    query = centres + torch.randn(count, N_WAY, N_QUERY, *IMAGE).double()
    return support, query


def features(count: int = 2, size: int = 5, n_shot: int = N_SHOT) -> tuple[Tensor, Tensor]:
    """Features of the support and of a list of queries."""
    support = torch.randn(count, N_WAY, n_shot, size).double()
    return support, torch.randn(count, N_QUERY + 1, size).double()


def made(name: str, **options: object) -> tuple[Method, FewShotNetwork]:
    """A method and its network, with few steps and no dropout."""
    few = {"epochs": 3, "steps": 8, "dropout": 0.0}
    own = {option: value for option, value in few.items() if hasattr(create_method(name), option)}
    method = create_method(name, **{**own, **options})
    return method, network_of(method)
