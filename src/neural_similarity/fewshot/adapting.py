"""A network of which some tensors belong to one episode, while the learner stays as it is."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from ..convert import attach, similarity_parameters
from ..nn.dynamic_similarity import DynamicSimilarity
from ..nn.inventory import named_similarities
from ..nn.static import StaticSimilarity
from .learner import Learner, batch_statistics
from .protocol import BatchNorm, query_labels
from .tuning import SupportSGD, prototype_classifier

__all__ = [
    "BIAS",
    "WEIGHT",
    "Tensors",
    "named_parameters",
    "scores_with",
    "similarity_names",
    "statistics",
    "tuned_scores",
    "with_similarity",
]

Tensors = dict[str, Tensor]
"""Parameters of the backbone by name, and the episode's classifier."""

# No parameter of a module has a name with a colon.
WEIGHT, BIAS = "classifier:weight", "classifier:bias"


def scores_with(learner: Learner, tensors: Tensors, images: Tensor) -> Tensor:
    """Scores ``(N, n_way)`` by the learner's backbone with these tensors in place of its own."""
    own = {name: tensor for name, tensor in tensors.items() if name not in (WEIGHT, BIAS)}
    features = functional_call(learner.backbone, own, (images,)).flatten(1)
    return F.linear(features, tensors[WEIGHT], tensors[BIAS])


def named_parameters(learner: Learner, names: Iterable[str]) -> Tensors:
    """These parameters of the backbone."""
    known = dict(learner.backbone.named_parameters())
    return {name: known[name] for name in names}


def similarity_names(backbone: nn.Module) -> list[str]:
    """The names of the parameters behind every similarity."""
    wanted = {id(parameter) for parameter in similarity_parameters(backbone)}
    return [name for name, parameter in backbone.named_parameters() if id(parameter) in wanted]


def with_similarity(backbone: nn.Module, kind: str) -> nn.Module:
    """The backbone with a similarity: its own if it has one, else a diagonal one."""
    if not any(True for _ in named_similarities(backbone)):
        attach(backbone, StaticSimilarity() if kind == "static" else DynamicSimilarity())
    return backbone


def statistics(learner: Learner, policy: BatchNorm) -> AbstractContextManager[None]:
    """What BatchNorm does while an episode is looked at."""
    return batch_statistics(learner.backbone) if policy == "batch" else nullcontext()


def tuned_scores(
    method: SupportSGD,
    start: str,
    learner: Learner,
    names: Iterable[str],
    support: Tensor,
    query: Tensor,
) -> Tensor:
    """Tune the named parameters and a new classifier on each support set; classify its queries."""
    scores = []
    for shown, asked in zip(support, query, strict=True):
        with statistics(learner, method.batch_norm):
            tensors = _tuned(method, start, learner, names, shown)
            with torch.no_grad():
                scores.append(scores_with(learner, tensors, asked))
    return torch.stack(scores)


@torch.enable_grad()  # evaluation switches gradients off
def _tuned(
    method: SupportSGD, start: str, learner: Learner, names: Iterable[str], support: Tensor
) -> Tensors:
    n_way, n_shot = support.shape[:2]
    images, labels = support.flatten(0, 1), query_labels(n_way, n_shot, support.device)
    first = {name: tensor.detach() for name, tensor in named_parameters(learner, names).items()}
    first |= zip((WEIGHT, BIAS), _first_classifier(start, learner, support), strict=True)

    def gradients(tensors: list[Tensor], rows: Tensor) -> list[Tensor]:
        leaves = [tensor.detach().requires_grad_() for tensor in tensors]
        mine = dict(zip(first, leaves, strict=True))
        if method.batch_norm == "batch":  # its statistics are those of the whole support set
            scores = scores_with(learner, mine, images)[rows]
        else:
            scores = scores_with(learner, mine, images[rows])
        loss = F.cross_entropy(scores, labels[rows])
        return list(torch.autograd.grad(loss, leaves, materialize_grads=True))

    last = method.descend(list(first.values()), gradients, len(images))
    return dict(zip(first, last, strict=True))


def _first_classifier(start: str, learner: Learner, support: Tensor) -> tuple[Tensor, Tensor]:
    n_way = len(support)
    if start == "zero":
        zero = support.new_zeros(n_way, learner.num_features)
        return zero, zero[:, 0].clone()
    with torch.no_grad():
        features = learner(support.flatten(0, 1)).unflatten(0, support.shape[:2])
        return prototype_classifier(features)
