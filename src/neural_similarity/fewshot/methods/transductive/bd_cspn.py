"""BD-CSPN: prototypes that queries rectify (Liu, Song and Qin, 2020).

Paper: "Prototype Rectification for Few-Shot Learning", Jinlu Liu, Liang Song and Yongqiang Qin,
https://arxiv.org/abs/1911.10713.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ...inner_loop.support_sgd import one_hot
from ...network import FewShotNetwork
from ..base import FeatureMethod
from ..registry import register_method

__all__ = ["BDCSPN", "cosines", "rectified_prototypes", "shifted"]


@register_method
@dataclass(frozen=True)
class BDCSPN(FeatureMethod):
    r"""The prototype with the highest cosine, after queries have rectified the prototypes.

    On unit-length features, two biases of a prototype p are reduced. Between support set and
    queries: queries are shifted so that both have the same mean (:func:`shifted`). Within a class:
    the queries most similar to a prototype join its class, and the new prototype is a weighted mean
    (:func:`rectified_prototypes`)

    .. math:: p'_w = \sum_i \frac{\exp(\varepsilon \cos(x_i, p_w))}
        {\sum_j \exp(\varepsilon \cos(x_j, p_w))} x_i, \qquad
        i, j \in S_w \cup Q_w

    with the support images :math:`S_w` of class w, and :math:`Q_w` the Z queries of highest cosine
    among those nearest to :math:`p_w`. Scores are :math:`\cos(x, p'_w)`.

    The paper's network is trained with a cosine classifier: for that, start with a run of
    ``baseline_pp``.

    Args:
        scale: ε. The code of LaplacianShot's authors
            (https://github.com/imtiazziko/LaplacianShot) and that of Veilleux et al. (2021) also
            use 10 for these weights.
        top: Z, here about half of the usual 15 queries per class; None takes all queries, as both
            of these do. The authors published no code.
    """

    scale: float = 10.0
    top: int | None = 8

    name: ClassVar[str] = "bd_cspn"
    trains_on: ClassVar[Literal["images", "episodes"]] = "images"
    transductive: ClassVar[bool] = True

    def feature_scores(self, network: FewShotNetwork, support: Tensor, query: Tensor) -> Tensor:
        support, query = F.normalize(support, dim=-1), F.normalize(query, dim=-1)
        query = shifted(support, query)
        return cosines(query, rectified_prototypes(support, query, self.scale, self.top))


def shifted(support: Tensor, query: Tensor) -> Tensor:
    """Queries ``(B, Q, D)`` with the mean of their support set ``(B, n_way, n_shot, D)``."""
    return query + support.mean((1, 2)).unsqueeze(1) - query.mean(1, keepdim=True)


def rectified_prototypes(
    support: Tensor, query: Tensor, scale: float, top: int | None = None
) -> Tensor:
    """Prototypes ``(B, n_way, D)``: means of support images and of similar queries.

    Args:
        support: ``(B, n_way, n_shot, D)``.
        query: ``(B, Q, D)``.
        scale: of the cosines in the exponents of the weights.
        top: how many queries may join a class; None is all that are nearest to it.
    """
    n_way, n_shot = support.shape[1:3]
    images, prototypes = support.flatten(1, 2), support.mean(2)
    similar = cosines(query, prototypes)
    nearest = F.one_hot(similar.argmax(-1), n_way).to(torch.bool)
    if top is not None and top < query.shape[1]:
        among = similar.masked_fill(~nearest, float("-inf"))
        chosen = among.topk(top, dim=1).indices
        nearest = nearest & torch.zeros_like(nearest).scatter(1, chosen, value=True)
    own = one_hot(n_way, n_shot, support).to(torch.bool).expand(len(support), -1, -1)
    members = torch.cat((own, nearest), dim=1)
    logits = scale * torch.cat((cosines(images, prototypes), similar), dim=1)
    weights = logits.masked_fill(~members, float("-inf")).softmax(1)
    return weights.mT @ torch.cat((images, query), dim=1)


def cosines(ours: Tensor, theirs: Tensor) -> Tensor:
    """The cosine of every pair: ``(B, Q, D)`` and ``(B, W, D)`` to ``(B, Q, W)``."""
    return F.normalize(ours, dim=-1) @ F.normalize(theirs, dim=-1).mT
