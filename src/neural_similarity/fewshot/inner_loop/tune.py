"""Tuning part of a network on support sets, by gradient descent through the network."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from ..batches import BatchNorm, query_labels
from ..network import FewShotNetwork
from .episode_parameters import BIAS, WEIGHT, Tensors, named_parameters, scores_with, statistics
from .many_episodes import ManyEpisodes
from .support_sgd import Start, SupportSGD, prototype_classifier, tune_coefficients

__all__ = ["tuned_scores"]

_IMAGES = 64  # queries of all episodes together that are classified at a time


def tuned_scores(
    sgd: SupportSGD,
    network: FewShotNetwork,
    names: Iterable[str],
    support: Tensor,
    query: Tensor,
    *,
    start: Start,
    batch_norm: BatchNorm,
) -> Tensor:
    """Tune the named parameters and a new classifier on each support set; classify its queries.

    Where the backbone allows it, all episodes take their steps together.

    Args:
        sgd: the steps to take.
        network: the network to tune; its own parameters do not change.
        names: which parameters of its backbone are tuned.
        support: ``(B, n_way, n_shot, C, H, W)``.
        query: ``(B, Q, C, H, W)``.
        start: where the classifier starts.
        batch_norm: which statistics BatchNorm uses.
    """
    own = {name: tensor.detach() for name, tensor in named_parameters(network, names).items()}
    with statistics(network, batch_norm):
        firsts = [own | _first_classifier(start, network, images) for images in support]
        episodes = ManyEpisodes(network.backbone)
        if batch_norm == "running" and episodes.works_for(own, support[0].flatten(0, 1)[:2]):
            return _together(sgd, episodes, firsts, support, query)
        scores = []
        for first, images, queries in zip(firsts, support, query, strict=True):
            last = _tuned(sgd, partial(scores_with, network), first, images, batch_norm)
            with torch.no_grad():
                scores.append(scores_with(network, last, queries))
        return torch.stack(scores)


def _together(
    sgd: SupportSGD, episodes: ManyEpisodes, firsts: list[Tensors], support: Tensor, query: Tensor
) -> Tensor:
    """Scores of all queries, where all episodes take their steps in one pass."""

    def scores_of(tensors: Tensors, images: Tensor) -> Tensor:
        features = episodes.features({name: tensors[name] for name in own}, images)
        return torch.baddbmm(tensors[BIAS].unsqueeze(1), features, tensors[WEIGHT].mT)

    first = {name: torch.stack([each[name] for each in firsts]) for name in firsts[0]}
    own = first.keys() - {WEIGHT, BIAS}
    last = _tuned(sgd, scores_of, first, support, "running")
    pieces = query.split(max(1, _IMAGES // len(query)), 1)
    with torch.no_grad():
        return torch.cat([scores_of(last, piece) for piece in pieces], 1)


@torch.enable_grad()  # evaluation switches gradients off
def _tuned(
    sgd: SupportSGD,
    scores_of: Callable[[Tensors, Tensor], Tensor],
    first: Tensors,
    support: Tensor,
    batch_norm: BatchNorm,
) -> Tensors:
    """The tensors of an episode, or of several, after all steps."""
    n_way, n_shot = support.shape[-5:-3]
    images, labels = support.flatten(-5, -4), query_labels(n_way, n_shot, support.device)

    def gradients(tensors: list[Tensor], rows: Tensor) -> list[Tensor]:
        leaves = [tensor.detach().requires_grad_() for tensor in tensors]
        parameters = dict(zip(first, leaves, strict=True))
        if batch_norm == "batch":  # its statistics are those of the whole support set
            scores = scores_of(parameters, images).index_select(-2, rows)
        else:
            scores = scores_of(parameters, images.index_select(-4, rows))
        targets = labels[rows].expand(scores.shape[:-1])
        loss = F.cross_entropy(scores.flatten(0, -2), targets.flatten(), reduction="sum")
        return list(torch.autograd.grad(loss / len(rows), leaves, materialize_grads=True))

    last = sgd.descend(list(first.values()), gradients, images.shape[-4])
    return dict(zip(first, last, strict=True))


def _first_classifier(start: Start, network: FewShotNetwork, support: Tensor) -> Tensors:
    n_way = len(support)
    if start == "zero":
        zero = support.new_zeros(n_way, network.num_features)
        return {WEIGHT: zero, BIAS: zero[:, 0]}
    with torch.no_grad():
        features = network(support.flatten(0, 1))
        if start == "tuned":
            A, bias = tune_coefficients(features[None], n_way, support.shape[1], "tuned", [])
            return {WEIGHT: A[..., 0].mT @ features, BIAS: bias[..., 0]}
        classifier = prototype_classifier(features.unflatten(0, support.shape[:2]))
        return dict(zip((WEIGHT, BIAS), classifier, strict=True))
