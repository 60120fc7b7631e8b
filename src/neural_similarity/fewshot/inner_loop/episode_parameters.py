"""Parameters of one episode in place of the network's, which do not change."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext

import torch.nn.functional as F
from torch import Tensor, nn

from ...convert import attach, similarity_parameters
from ...convert.switch import check_switched_on
from ...nn.dynamic import DynamicSimilarity
from ...nn.inventory import named_similarities
from ...nn.static import StaticSimilarity
from ..batches import BatchNorm
from ..network import FewShotNetwork, batch_statistics
from .call_with import call_with

__all__ = [
    "BIAS",
    "WEIGHT",
    "Tensors",
    "named_parameters",
    "scores_with",
    "similarity_names",
    "statistics",
    "with_similarity",
]

Tensors = dict[str, Tensor]
"""Parameters of the backbone by name, and the episode's classifier."""

# Names of module parameters never contain a colon.
WEIGHT, BIAS = "classifier:weight", "classifier:bias"


def scores_with(network: FewShotNetwork, tensors: Tensors, images: Tensor) -> Tensor:
    """Scores ``(N, n_way)`` of the backbone with these tensors in place of its parameters."""
    own = {name: tensor for name, tensor in tensors.items() if name not in (WEIGHT, BIAS)}
    features = call_with(network.backbone, own, images).flatten(1)
    return F.linear(features, tensors[WEIGHT], tensors[BIAS])


def named_parameters(network: FewShotNetwork, names: Iterable[str]) -> Tensors:
    """These parameters of the backbone."""
    parameters = dict(network.backbone.named_parameters())
    return {name: parameters[name] for name in names}


def similarity_names(backbone: nn.Module) -> list[str]:
    """The names of the parameters behind every similarity."""
    ids = {id(parameter) for parameter in similarity_parameters(backbone)}
    return [name for name, parameter in backbone.named_parameters() if id(parameter) in ids]


def with_similarity(backbone: nn.Module, kind: str) -> nn.Module:
    """The backbone with a similarity: its own if it has one, else a diagonal one."""
    check_switched_on("fewshot", backbone)
    if not any(True for _ in named_similarities(backbone)):
        attach(backbone, StaticSimilarity() if kind == "static" else DynamicSimilarity())
    return backbone


def statistics(network: FewShotNetwork, policy: BatchNorm) -> AbstractContextManager[None]:
    """Which statistics BatchNorm uses on the images of an episode."""
    return batch_statistics(network.backbone) if policy == "batch" else nullcontext()
