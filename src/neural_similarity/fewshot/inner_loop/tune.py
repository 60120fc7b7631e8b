"""Tune part of a network on support sets, by gradient descent through the network."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from ..batches import BatchNorm, query_labels
from ..network import FewShotNetwork
from .chain import Chain, find_chain
from .episode_parameters import BIAS, WEIGHT, Tensors, named_parameters, scores_with, statistics
from .many_episodes import ManyEpisodes
from .support_sgd import Start, SupportSGD, prototype_classifier, tune_coefficients

__all__ = ["tuned_scores"]

_IMAGES = 64  # queries classified at a time, over all episodes
_EPISODES = 4  # that autograd processes together: more are no faster, and need more memory


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

    If the backbone allows it, all episodes are tuned together.

    Args:
        sgd: the optimiser.
        network: the network to tune; its parameters do not change.
        names: which parameters of its backbone are tuned.
        support: ``(B, n_way, n_shot, C, H, W)``.
        query: ``(B, Q, C, H, W)``.
        start: where the classifier starts.
        batch_norm: which statistics BatchNorm uses.
    """
    own = {name: tensor.detach() for name, tensor in named_parameters(network, names).items()}
    with statistics(network, batch_norm):
        firsts = _first_classifiers(start, network, support)
        firsts |= {name: tensor.expand(len(support), *tensor.shape) for name, tensor in own.items()}
        episodes, some = ManyEpisodes(network.backbone), support[0].flatten(0, 1)[:2]
        if batch_norm == "running" and episodes.works_for(own, some):
            chain = find_chain(episodes, own, some)
            if chain is not None:
                return _by_chain(sgd, chain, firsts, support, query)
            parts = zip(
                _parts(firsts), support.split(_EPISODES), query.split(_EPISODES), strict=True
            )
            return torch.cat([_together(sgd, episodes, *part) for part in parts])
        scores = []
        for b, (images, queries) in enumerate(zip(support, query, strict=True)):
            first = {name: tensor[b] for name, tensor in firsts.items()}
            last = _tuned(sgd, partial(scores_with, network), first, images, batch_norm)
            with torch.no_grad():
                scores.append(scores_with(network, last, queries))
        return torch.stack(scores)


def _parts(tensors: Tensors) -> Iterator[Tensors]:
    """The tensors of a few episodes at a time."""
    for part in zip(*(tensor.split(_EPISODES) for tensor in tensors.values()), strict=True):
        yield dict(zip(tensors, part, strict=True))


def _by_chain(
    sgd: SupportSGD, chain: Chain, first: Tensors, support: Tensor, query: Tensor
) -> Tensor:
    """Scores of all queries, with all episodes tuned by compiled code."""
    n_way, n_shot = support.shape[1:3]
    inputs, labels = chain.first_inputs(support.flatten(1, 2)), query_labels(n_way, n_shot)
    *own, _, _ = names = [*(first.keys() - {WEIGHT, BIAS}), WEIGHT, BIAS]

    def gradients(tensors: list[Tensor], rows: Tensor) -> list[Tensor]:
        now = dict(zip(own, tensors[:-2], strict=True))
        slopes, of_classifier = chain.gradients(now, tensors[-2:], inputs, labels, rows)
        return [*(slopes[name] for name in own), *of_classifier]

    last = sgd.descend([first[name] for name in names], gradients, len(labels))
    now = dict(zip(own, last[:-2], strict=True))
    with torch.no_grad():
        pieces = query.split(max(1, _IMAGES // len(query)), 1)
        features = torch.cat(
            [chain.features(now, chain.first_inputs(piece)) for piece in pieces], 1
        )
        return torch.baddbmm(last[-1].unsqueeze(1), features, last[-2].mT)


def _together(
    sgd: SupportSGD, episodes: ManyEpisodes, first: Tensors, support: Tensor, query: Tensor
) -> Tensor:
    """Scores of all queries, with all episodes tuned in one pass."""

    def scores_of(tensors: Tensors, images: Tensor) -> Tensor:
        features = episodes.features({name: tensors[name] for name in own}, images)
        return torch.baddbmm(tensors[BIAS].unsqueeze(1), features, tensors[WEIGHT].mT)

    own = first.keys() - {WEIGHT, BIAS}
    last = _tuned(sgd, scores_of, first, support, "running")
    pieces = query.split(max(1, _IMAGES // len(query)), 1)
    with torch.no_grad():
        return torch.cat([scores_of(last, piece) for piece in pieces], 1)


@torch.enable_grad()  # evaluation disables gradients
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


def _first_classifiers(start: Start, network: FewShotNetwork, support: Tensor) -> Tensors:
    """Weight ``(B, n_way, D)`` and bias ``(B, n_way)`` that every episode starts with."""
    count, n_way, n_shot = support.shape[:3]
    if start == "zero":
        zero = support.new_zeros(count, n_way, network.num_features)
        return {WEIGHT: zero, BIAS: zero[..., 0]}
    with torch.no_grad():
        # BatchNorm may use the statistics of an episode, so episodes are embedded one by one.
        features = torch.stack([network(images.flatten(0, 1)) for images in support])
        if start == "tuned":
            A, bias = tune_coefficients(features, n_way, n_shot, "tuned", [])
            return {WEIGHT: A.permute(2, 1, 0) @ features, BIAS: bias.mT}
        by_class = features.unflatten(1, (n_way, n_shot))
        classifiers = [prototype_classifier(each) for each in by_class]
        return {
            name: torch.stack(tensors)
            for name, tensors in zip((WEIGHT, BIAS), zip(*classifiers, strict=True), strict=True)
        }
