"""Ridge regression as the network of an episode: R2D2 (Bertinetto and others, 2019)."""

from __future__ import annotations

from dataclasses import dataclass
from math import log
from typing import ClassVar, cast

import torch
from torch import Tensor, nn

from ...errors import RunError
from ..network import FewShotNetwork
from .base import FeatureMethod
from .registry import register_method

__all__ = ["Ridge", "RidgeHead"]


class RidgeHead(nn.Module):
    """The numbers that training learns besides the features: λ > 0, a scale and a bias."""

    def __init__(self, ridge: float, scale: float) -> None:
        super().__init__()
        self.log_ridge = nn.Parameter(torch.tensor(log(ridge)))
        self.scale = nn.Parameter(torch.tensor(scale))
        self.bias = nn.Parameter(torch.tensor(0.0))


@register_method
@dataclass(frozen=True)
class Ridge(FeatureMethod):
    r"""A linear classifier of the support set in closed form, through which training looks.

    With support features X ``(n, D)``, n = n_way · n_shot, and one-hot labels Y:

    .. math:: W = X^\top (X X^\top + \lambda I)^{-1} Y, \qquad
        s = \alpha \, x^\top W + \beta

    which by Woodbury's identity is ridge regression, at the cost of an n × n system instead of a
    D × D one.

    Args:
        ridge: λ to begin with.
        scale: α to begin with; β begins at 0.
    """

    ridge: float = 10.0
    scale: float = 10.0

    name: ClassVar[str] = "ridge"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.ridge > 0:
            raise RunError(f"Ridge: expected ridge above 0, got {self.ridge}.")

    def head(self, network: FewShotNetwork, num_classes: int) -> nn.Module:
        return RidgeHead(self.ridge, self.scale)

    def feature_scores(self, network: FewShotNetwork, support: Tensor, query: Tensor) -> Tensor:
        head = cast(RidgeHead, network.head)
        n_way, n_shot = support.shape[1:3]
        X = support.flatten(1, 2)
        one = torch.eye(n_way, dtype=X.dtype, device=X.device)
        Y = one.repeat_interleave(n_shot, 0).expand(len(X), -1, -1)
        identity = torch.eye(X.shape[1], dtype=X.dtype, device=X.device)
        dual = torch.linalg.solve(X @ X.mT + head.log_ridge.exp() * identity, Y)
        # The other way round, (x Xᵀ) dual, never makes the D × n_way classifier.
        fitted: Tensor = query @ X.mT @ dual
        return fitted * head.scale + head.bias

    def adapted(self, network: FewShotNetwork, n_way: int) -> int:
        return n_way * network.num_features
