"""LaplacianShot: neighbouring queries get the same label (Ziko et al., 2020).

Paper: "Laplacian Regularized Few-Shot Learning", Imtiaz Masud Ziko, Jose Dolz, Eric Granger and
Ismail Ben Ayed, https://arxiv.org/abs/2006.15486.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from ...network import FewShotNetwork
from ..base import FeatureMethod
from ..metric.proto import squared_distances
from ..metric.simpleshot import Transform, transformed
from ..registry import register_method
from .bd_cspn import rectified_prototypes, shifted

__all__ = ["LaplacianShot", "bound_updates", "neighbour_affinities"]


@register_method
@dataclass(frozen=True)
class LaplacianShot(FeatureMethod):
    r"""Nearest prototype, where neighbouring queries pull each other to the same class.

    .. math:: \min_{Y} \; \sum_q y_q^\top (a_q + \log y_q)
        - \frac\lambda2 \sum_{q, p} W_{qp} \, y_q^\top y_p

    over assignments :math:`y_q` of queries to classes, with :math:`a_{qw}` the squared distance of
    query q to prototype w, and :math:`W_{qp} = 1` if p is among the nearest neighbours of q. If
    every query belongs to one class entirely, the last term is
    :math:`\frac\lambda4 \sum_{q, p} W_{qp} \|y_q - y_p\|^2` up to a constant. The updates can be
    computed for all queries at once (:func:`bound_updates`).
    Prototypes are first rectified as in ``bd_cspn``, with all queries and ε = 10. (The authors'
    code uses the same ε, but takes the softmax of the weights over classes.) Scores are the
    logarithms of the assignments.

    Args:
        laplacian: λ. The authors choose it between 0.1 and 1.5 on validation classes; 1 is the
            default of their code (https://github.com/imtiazziko/LaplacianShot).
        neighbours: the nearest images of a query, itself included, as in their code: 3 means
            two others.
        steps: number of updates.
        rectify: whether queries rectify the prototypes.
        features: as in ``simpleshot``.
    """

    laplacian: float = 1.0
    neighbours: int = 3
    steps: int = 20
    rectify: bool = True
    features: Transform = "cl2n"

    name: ClassVar[str] = "laplacianshot"
    trains_on: ClassVar[Literal["images", "episodes"]] = "images"
    transductive: ClassVar[bool] = True

    @property
    def needs_base_mean(self) -> bool:
        return self.features == "cl2n"

    def feature_scores(self, network: FewShotNetwork, support: Tensor, query: Tensor) -> Tensor:
        support, query = (transformed(network, x, self.features) for x in (support, query))
        prototypes = support.mean(2)
        if self.rectify:
            query = shifted(support, query)
            prototypes = rectified_prototypes(support, query, scale=10.0)
        affinities = neighbour_affinities(query, self.neighbours - 1)
        distances = squared_distances(query, prototypes)
        return bound_updates(distances, affinities, self.laplacian, self.steps)


def neighbour_affinities(query: Tensor, count: int) -> Tensor:
    """W ``(B, Q, Q)``: one for the ``count`` nearest other queries of each query, else zero.

    >>> neighbour_affinities(torch.tensor([[[0.0], [1.0], [3.0]]]), 1)
    tensor([[[0., 1., 0.],
             [1., 0., 0.],
             [0., 1., 0.]]])
    """
    distances = squared_distances(query, query)
    distances.diagonal(dim1=1, dim2=2).fill_(float("inf"))
    count = min(count, query.shape[1] - 1)
    nearest = distances.topk(count, largest=False).indices
    return torch.zeros_like(distances).scatter(2, nearest, 1.0)


def bound_updates(distances: Tensor, affinities: Tensor, laplacian: float, steps: int) -> Tensor:
    r"""Logarithms ``(B, Q, n_way)`` of assignments, after some updates.

    .. math:: y_q \leftarrow \operatorname{softmax}\Big(-a_q + \lambda \sum_p W_{qp} y_p\Big)

    for all queries at once, starting at :math:`\operatorname{softmax}(-a_q)`. If W is symmetric,
    assignments that an update leaves alone are stationary points of the objective of
    :class:`LaplacianShot`; here, as in the authors' code, it is not quite symmetric. They stop
    earlier if the objective changes by less than a millionth.

    Args:
        distances: a, ``(B, Q, n_way)``.
        affinities: W, ``(B, Q, Q)``.
        laplacian: λ.
        steps: number of updates.
    """
    logarithms = (-distances).log_softmax(-1)
    for _ in range(steps):
        pull = affinities @ logarithms.exp()
        logarithms = (laplacian * pull - distances).log_softmax(-1)
    return logarithms
