"""A network of which some tensors belong to one episode, while the learner stays as it is."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import partial

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
from .side_by_side import SideBySide
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

_IMAGES = 64  # of all episodes together, that are classified at a time


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
    """Tune the named parameters and a new classifier on each support set; classify its queries.

    Where the backbone allows it, all episodes take their steps together.
    """
    own = {name: tensor.detach() for name, tensor in named_parameters(learner, names).items()}
    with statistics(learner, method.batch_norm):
        firsts = [own | _first_classifier(start, learner, shown) for shown in support]
        together = SideBySide(learner.backbone)
        if method.batch_norm == "running" and together.works_for(own, support[0].flatten(0, 1)[:2]):
            return _together(method, together, firsts, support, query)
        scores = []
        for first, shown, asked in zip(firsts, support, query, strict=True):
            last = _tuned(method, partial(scores_with, learner), first, shown)
            with torch.no_grad():
                scores.append(scores_with(learner, last, asked))
        return torch.stack(scores)


def _together(
    method: SupportSGD, together: SideBySide, firsts: list[Tensors], support: Tensor, query: Tensor
) -> Tensor:
    def scores_of(tensors: Tensors, images: Tensor) -> Tensor:
        features = together.features({name: tensors[name] for name in own}, images)
        return torch.baddbmm(tensors[BIAS].unsqueeze(1), features, tensors[WEIGHT].mT)

    first = {name: torch.stack([each[name] for each in firsts]) for name in firsts[0]}
    own = first.keys() - {WEIGHT, BIAS}
    last = _tuned(method, scores_of, first, support)
    pieces = query.split(max(1, _IMAGES // len(query)), 1)
    with torch.no_grad():
        return torch.cat([scores_of(last, piece) for piece in pieces], 1)


@torch.enable_grad()  # evaluation switches gradients off
def _tuned(
    method: SupportSGD,
    scores_of: Callable[[Tensors, Tensor], Tensor],
    first: Tensors,
    support: Tensor,
) -> Tensors:
    """The tensors of an episode, or of several, after all steps."""
    n_way, n_shot = support.shape[-5:-3]
    images, labels = support.flatten(-5, -4), query_labels(n_way, n_shot, support.device)

    def gradients(tensors: list[Tensor], rows: Tensor) -> list[Tensor]:
        leaves = [tensor.detach().requires_grad_() for tensor in tensors]
        mine = dict(zip(first, leaves, strict=True))
        if method.batch_norm == "batch":  # its statistics are those of the whole support set
            scores = scores_of(mine, images).index_select(-2, rows)
        else:
            scores = scores_of(mine, images.index_select(-4, rows))
        wanted = labels[rows].expand(scores.shape[:-1])
        loss = F.cross_entropy(scores.flatten(0, -2), wanted.flatten(), reduction="sum")
        return list(torch.autograd.grad(loss / len(rows), leaves, materialize_grads=True))

    last = method.descend(list(first.values()), gradients, images.shape[-4])
    return dict(zip(first, last, strict=True))


def _first_classifier(start: str, learner: Learner, support: Tensor) -> Tensors:
    n_way = len(support)
    if start == "zero":
        zero = support.new_zeros(n_way, learner.num_features)
        return {WEIGHT: zero, BIAS: zero[:, 0]}
    with torch.no_grad():
        features = learner(support.flatten(0, 1)).unflatten(0, support.shape[:2])
        return dict(zip((WEIGHT, BIAS), prototype_classifier(features), strict=True))
