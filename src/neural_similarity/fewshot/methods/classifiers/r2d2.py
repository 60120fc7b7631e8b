"""R2D2: ridge regression inside a meta-learned network (Bertinetto et al., 2019).

Paper: "Meta-learning with differentiable closed-form solvers", https://arxiv.org/abs/1805.08136.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log
from typing import ClassVar, cast

import torch
from torch import Tensor, nn

from ....errors import RunError
from ...inner_loop.support_sgd import one_hot
from ...network import FewShotNetwork
from ..base import FeatureMethod
from ..registry import register_method

__all__ = ["R2D2", "R2D2Head"]


class R2D2Head(nn.Module):
    """The parameters that training learns besides the features: λ > 0, a scale and a bias."""

    def __init__(self, ridge: float, scale: float) -> None:
        super().__init__()
        self.log_ridge = nn.Parameter(torch.tensor(log(ridge)))
        self.scale = nn.Parameter(torch.tensor(scale))
        self.bias = nn.Parameter(torch.tensor(0.0))


@register_method
@dataclass(frozen=True)
class R2D2(FeatureMethod):
    r"""A linear classifier fitted in closed form; training differentiates through it.

    With support features X ``(n, D + 1)``, whose last column is ones, n = n_way · n_shot, and
    one-hot labels Y:

    .. math:: W = X^\top (X X^\top + n \lambda I)^{-1} Y, \qquad
        s = \alpha \, x^\top W + \beta

    which by Woodbury's identity is ridge regression, at the cost of an n × n system instead of a
    D × D one. As in the authors' code, squared errors are averaged over the images, so that the
    same λ suits any n. Training learns the features, λ, α and β; the authors' code keeps λ at 50,
    for longer features. Method ``ridge`` is for features that are already trained: it chooses λ
    for every episode.

    Args:
        ridge: the initial λ.
        scale: the initial α; β starts at 0.
    """

    ridge: float = 1.0
    scale: float = 10.0

    name: ClassVar[str] = "r2d2"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.ridge > 0:
            raise RunError(f"R2D2: expected ridge above 0, got {self.ridge}.")

    def head(self, network: FewShotNetwork, num_classes: int) -> nn.Module:
        return R2D2Head(self.ridge, self.scale)

    def feature_scores(self, network: FewShotNetwork, support: Tensor, query: Tensor) -> Tensor:
        head = cast(R2D2Head, network.head)
        X = support.flatten(1, 2)
        Y = one_hot(support.shape[1], support.shape[2], X).expand(len(X), -1, -1)
        n = X.shape[1]
        identity = torch.eye(n, dtype=X.dtype, device=X.device)
        # The column of ones adds one to every product of two images.
        dual = torch.linalg.solve(X @ X.mT + 1 + n * head.log_ridge.exp() * identity, Y)
        # In this order the D × n_way classifier is never computed.
        products: Tensor = (query @ X.mT + 1) @ dual
        return products * head.scale + head.bias

    def adapted(self, network: FewShotNetwork, n_way: int) -> int:
        return n_way * (network.num_features + 1)
