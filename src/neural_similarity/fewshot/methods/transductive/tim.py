"""TIM: transductive information maximisation (Boudiaf et al., 2020).

Paper: "Transductive Information Maximization For Few-Shot Learning", Malik Boudiaf, Ziko Imtiaz
Masud, Jérôme Rony, José Dolz, Pablo Piantanida and Ismail Ben Ayed,
https://arxiv.org/abs/2008.11297.
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
from ..metric.proto import squared_distances
from ..registry import register_method

__all__ = ["TIM", "information_loss"]


@register_method
@dataclass(frozen=True)
class TIM(FeatureMethod):
    r"""Prototypes tuned for confident and balanced query labels (TIM-GD).

    .. math:: \min_{p} \; \lambda \, \mathrm{CE}(S) - \hat H(Y_Q) + \alpha \hat H(Y_Q \mid X_Q),
        \qquad P(w \mid x) \propto \exp\left(-\frac\tau2 \|x - p_w\|^2\right)

    on unit-length features, with the cross-entropy of the support set S, the entropy
    :math:`\hat H(Y_Q)` of the mean prediction for queries and the mean entropy
    :math:`\hat H(Y_Q \mid X_Q)` of their predictions (:func:`information_loss`). Prototypes start
    at the means of the support images and are optimised by Adam. The first entropy is largest for
    balanced queries. The authors' faster solver, TIM-ADM, is not implemented.

    Args:
        cross_entropy: λ.
        conditional: α.
        marginal: the weight of :math:`\hat H(Y_Q)`.
        temperature: τ.
        steps, lr: of Adam.
    """

    cross_entropy: float = 0.1
    conditional: float = 0.1
    marginal: float = 1.0
    temperature: float = 15.0
    steps: int = 1000
    lr: float = 1e-4

    name: ClassVar[str] = "tim"
    trains_on: ClassVar[Literal["images", "episodes"]] = "images"
    transductive: ClassVar[bool] = True

    @torch.enable_grad()  # evaluation disables gradients
    def feature_scores(self, network: FewShotNetwork, support: Tensor, query: Tensor) -> Tensor:
        support, query = (F.normalize(x.detach(), dim=-1) for x in (support, query))
        targets = one_hot(support.shape[1], support.shape[2], support)
        prototypes = support.mean(2).requires_grad_()
        adam = torch.optim.Adam([prototypes], lr=self.lr)
        weights = (self.cross_entropy, self.marginal, self.conditional)
        for _ in range(self.steps):
            support_scores = self._scores_of(support.flatten(1, 2), prototypes)
            query_scores = self._scores_of(query, prototypes)
            # A sum over episodes: Adam updates every entry by its own gradient.
            loss = information_loss(support_scores, query_scores, targets, *weights).sum()
            adam.zero_grad()
            loss.backward()
            adam.step()
        return self._scores_of(query, prototypes.detach())

    def _scores_of(self, features: Tensor, prototypes: Tensor) -> Tensor:
        return -self.temperature / 2 * squared_distances(features, prototypes)

    def adapted(self, network: FewShotNetwork, n_way: int) -> int:
        return n_way * network.num_features


def information_loss(
    support: Tensor,
    query: Tensor,
    targets: Tensor,
    cross_entropy: float,
    marginal: float,
    conditional: float,
) -> Tensor:
    """The loss ``(B,)`` of every episode.

    Args:
        support: scores ``(B, n, n_way)``.
        query: scores ``(B, Q, n_way)``.
        targets: one-hot labels ``(n, n_way)`` of the support set.
        cross_entropy, marginal, conditional: the weights of the three terms.
    """
    logarithms = query.log_softmax(-1)
    shares = logarithms.exp()
    conditional_entropy = -(shares * logarithms).sum(-1).mean(-1)
    marginal_entropy: Tensor = torch.special.entr(shares.mean(1)).sum(-1)
    errors = -(targets * support.log_softmax(-1)).sum(-1).mean(-1)
    return cross_entropy * errors - marginal * marginal_entropy + conditional * conditional_entropy
