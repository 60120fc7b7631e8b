"""Matching networks (Vinyals et al., 2016).

Paper: "Matching Networks for One Shot Learning", https://arxiv.org/abs/1606.04080.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ....errors import RunError
from ...network import FewShotNetwork
from ..base import FeatureMethod
from ..registry import register_method

__all__ = ["FullContext", "Matching"]


@register_method
@dataclass(frozen=True)
class Matching(FeatureMethod):
    r"""A query gets the labels of the support images it attends to.

    .. math:: p(\text{class } w) = \sum_{i \in w} a(x, x_i), \qquad
        a = \operatorname{softmax}_i \, \alpha \cos(f(x), g(x_i))

    Scores are the logarithms of these probabilities, each plus ``floor``. Without it, the loss of
    a hopeless query would be as large as α allows.

    Args:
        scale: α. The paper uses 1; the 100 of CloserLook allows sharper attention.
        floor: added to probabilities, as in CloserLook; the paper has none.
        fce: full context embeddings: f and g see the whole support set.
        fce_steps: how often f reads it.
    """

    scale: float = 100.0
    floor: float = 1e-6
    fce: bool = False
    fce_steps: int = 5

    name: ClassVar[str] = "matching"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.floor < 1:
            raise RunError(f"Matching: expected floor below 1, got {self.floor}.")

    def head(self, network: FewShotNetwork, num_classes: int) -> nn.Module:
        return FullContext(network.num_features, self.fce_steps) if self.fce else nn.Identity()

    def feature_scores(self, network: FewShotNetwork, support: Tensor, query: Tensor) -> Tensor:
        images = support.flatten(1, 2)
        if self.fce:
            images, query = network.head(images, query)
        cosines = F.normalize(query, dim=-1) @ F.normalize(images, dim=-1).mT
        attention = (self.scale * cosines).log_softmax(-1)
        scores: Tensor = attention.unflatten(-1, support.shape[1:3]).logsumexp(-1)
        return torch.logaddexp(scores, scores.new_tensor(self.floor).log())


class FullContext(nn.Module):
    """The paper's functions g (a bidirectional LSTM over the support set) and f (with attention).

    Args:
        features: D, of input and output.
        steps: how often f reads.
    """

    def __init__(self, features: int, steps: int) -> None:
        super().__init__()
        self.steps = steps
        self.along = nn.LSTM(features, features, batch_first=True, bidirectional=True)
        self.reader = nn.LSTMCell(2 * features, features)

    def forward(self, support: Tensor, query: Tensor) -> tuple[Tensor, Tensor]:
        """``(B, n, D)`` and ``(B, Q, D)``, embedded in the context of the support set."""
        support = self.in_context(support)
        return support, self.read(support, query)

    def in_context(self, support: Tensor) -> Tensor:
        """g: each image in the context of those before and after it."""
        states: Tensor = self.along(support)[0]
        forward, backward = states.chunk(2, dim=-1)
        return support + forward + backward

    def read(self, support: Tensor, query: Tensor) -> Tensor:
        r"""f: each query with what it attends to in the support set, whose order does not matter.

        With the support set :math:`g_i` and a query :math:`f'`, for k = 1, ..., K (the paper's
        equations 3 to 6):

        .. math:: r_{k-1} = \sum_i \operatorname{softmax}_i(h_{k-1}^\top g_i) \, g_i, \qquad
            \hat h_k, c_k = \operatorname{LSTM}(f', [h_{k-1}, r_{k-1}], c_{k-1}), \qquad
            h_k = \hat h_k + f'

        The paper does not say where it starts. With :math:`\hat h_0 = c_0 = 0`, the last equation
        gives :math:`h_0 = f'`, so the first step attends too.
        """
        shape, flat = query.shape, query.flatten(0, 1)
        state, cell = flat, torch.zeros_like(flat)
        for _ in range(self.steps):
            attention = (state.reshape(shape) @ support.mT).softmax(-1)
            read = (attention @ support).flatten(0, 1)
            # The paper's state is [h, r]; here r is part of the input, which is the same.
            hidden, cell = self.reader(torch.cat((flat, read), dim=1), (state, cell))
            state = hidden + flat
        return state.reshape(shape)
