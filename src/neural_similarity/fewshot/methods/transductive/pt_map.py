"""PT-MAP: power transform, then class centres by optimal transport (Hu et al., 2020).

Paper: "Leveraging the Feature Distribution in Transfer-based Few-Shot Learning", Yuqing Hu, Vincent
Gripon and Stéphane Pateux, https://arxiv.org/abs/2006.03806.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ...network import FewShotNetwork
from ..base import FeatureMethod
from ..metric.proto import squared_distances
from ..registry import register_method

__all__ = ["PTMAP", "power_transform", "transport_plan"]

_SMALL = 1e-6  # the paper's ε, of the transform and of the transport
_ITERATIONS = 1000


@register_method
@dataclass(frozen=True)
class PTMAP(FeatureMethod):
    r"""Class centres and soft assignments of queries to them, improved in turn.

    Features are transformed (:func:`power_transform`); support images and queries are then centred,
    each by their own mean, and scaled to unit length. From the means of the support images, every
    step assigns queries to centres :math:`c_w` and moves the centres towards those queries:

    .. math:: M = \arg\min_{M \in U} \sum_{qw} M_{qw} \|x_q - c_w\|^2 + \frac1\lambda M_{qw} \log
        M_{qw}, \qquad
        c_w \leftarrow c_w + \alpha \left(
        \frac{\sum_k x_{wk} + \sum_q M_{qw} x_q}{K + \sum_q M_{qw}} - c_w \right)

    U is the set of plans in which each query has a mass of one and each class receives the same
    mass (:func:`transport_plan`): the method assumes that queries are balanced, which other methods
    must not. Scores are the logarithms of M.

    Args:
        power: β of the transform.
        sharpness: λ.
        rate: α.
        steps: number of updates of the centres.

    The defaults are those of the authors' code (``test_standard.py`` of
    https://github.com/yhu01/PT-MAP).
    """

    power: float = 0.5
    sharpness: float = 10.0
    rate: float = 0.2
    steps: int = 20

    name: ClassVar[str] = "pt_map"
    trains_on: ClassVar[Literal["images", "episodes"]] = "images"
    transductive: ClassVar[bool] = True

    def feature_scores(self, network: FewShotNetwork, support: Tensor, query: Tensor) -> Tensor:
        support, query = (power_transform(x, self.power) for x in (support, query))
        support = F.normalize(support - support.mean((1, 2), keepdim=True), dim=-1)
        query = F.normalize(query - query.mean(1, keepdim=True), dim=-1)
        centres = support.mean(2)
        for _ in range(self.steps):
            plan = transport_plan(squared_distances(query, centres), self.sharpness)
            sums = support.sum(2) + plan.mT @ query
            masses = support.shape[2] + plan.sum(1).unsqueeze(-1)
            centres = centres + self.rate * (sums / masses - centres)
        return transport_plan(squared_distances(query, centres), self.sharpness).log()

    def adapted(self, network: FewShotNetwork, n_way: int) -> int:
        return n_way * network.num_features


def power_transform(features: Tensor, power: float) -> Tensor:
    """``(x + ε)^β`` of features ``(..., D)``, or their logarithm if β is 0, scaled to unit length.

    Features are expected after a ReLU; negative values count as zero.

    >>> power_transform(torch.tensor([9.0, 16.0, -1.0]), 0.5)
    tensor([6.0000e-01, 8.0000e-01, 2.0000e-04])
    """
    positive = features.relu() + _SMALL
    return F.normalize(positive.log() if power == 0 else positive**power, dim=-1)


def transport_plan(distances: Tensor, sharpness: float) -> Tensor:
    """The plan M ``(B, Q, n_way)`` with row sums 1 and column sums Q / n_way (Sinkhorn).

    Rows and columns of ``exp(−λ distances)`` are scaled in turn, until the row sums change by less
    than 1e-6. Each episode stops independently, so none depends on others.

    >>> transport_plan(torch.tensor([[[0.0, 1.0], [0.0, 2.0]]]), 10.0)  # both are nearer to class 0
    tensor([[[0.0067, 0.9933],
             [0.9933, 0.0067]]])
    """
    columns = log(distances.shape[1] / distances.shape[2])
    # Logarithms, so that nothing underflows: a class may be far from all queries.
    plan = (-sharpness * distances).flatten(1).log_softmax(1).view_as(distances)
    before = torch.zeros_like(plan[..., 0])
    for _ in range(_ITERATIONS):
        totals = plan.logsumexp(2)
        rows = totals.exp()
        moving = ((rows - before).abs().amax(1) > _SMALL)[:, None, None]
        if not moving.any():
            break
        scaled = plan - totals.unsqueeze(2)
        scaled = scaled + columns - scaled.logsumexp(1, keepdim=True)
        plan, before = torch.where(moving, scaled, plan), rows
    return plan.exp()
