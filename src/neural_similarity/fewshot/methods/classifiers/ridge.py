"""Ridge regression on unit-length features, regularisation chosen by leave-one-out.

Papers: Hoerl and Kennard (1970), "Ridge Regression: Biased Estimation for Nonorthogonal Problems",
https://doi.org/10.1080/00401706.1970.10488634; the closed form of the leave-one-out error is in
Rifkin and Lippert (2007), "Notes on Regularized Least Squares",
https://dspace.mit.edu/handle/1721.1/37318.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from ...network import FewShotNetwork
from ..registry import register_method
from .linear_classifiers import FittedClassifier

__all__ = ["RIDGES", "Ridge", "fit_ridge"]

RIDGES = 10.0 ** torch.arange(-3.0, 1.5, 0.5, dtype=torch.float64)
"""The values of λ to choose from, as shares of the mean squared length of the centred features."""


@register_method
@dataclass(frozen=True)
class Ridge(FittedClassifier):
    """A network trained on base classes; new classes by ridge regression on its features.

    Features are scaled to unit length, and :func:`fit_ridge` fits the classifier, with λ chosen for
    every episode. There is nothing to tune. Method ``r2d2`` learns λ and trains the features
    through the regression.

    Args:
        scale: a factor of the scores; without it, right and wrong targets differ by one.
    """

    scale: float = 10.0

    name: ClassVar[str] = "ridge"

    def fit(
        self, network: FewShotNetwork, features: Tensor, labels: Tensor, n_way: int
    ) -> tuple[Tensor, Tensor]:
        weight, bias = fit_ridge(features, labels, n_way)
        return self.scale * weight, self.scale * bias


def fit_ridge(
    features: Tensor,
    labels: Tensor,
    n_way: int,
    weights: Tensor | None = None,
    groups: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    r"""Weight ``(..., n_way, D)`` and bias ``(..., n_way)`` of ridge regression on one-hot labels.

    .. math:: W = X^\top S (S X X^\top S + \lambda I)^{-1} S (Y - 1/n_{way}), \qquad
        b = -c^\top W

    with X the features minus their weighted mean c, Y the one-hot labels, and S the diagonal matrix
    of the square roots of the images' weights. λ is the value of :data:`RIDGES` with the smallest
    squared leave-one-out error (the mean c leaves the image out too), which has a closed form. If
    images are copies of each other, all of them are left out together. Computed in float64.

    Args:
        features: ``(..., n, D)``, of one support set or of many at once.
        labels: ``(n,)``, the same for every support set.
        n_way: number of classes.
        weights: ``(n,)``, the weight of each image; equal by default.
        groups: ``(n,)``, the same number for copies; by default every image is its own group.
    """
    X = features.double()
    counts = torch.ones_like(X[..., 0]) if weights is None else weights.to(X).expand(X.shape[:-1])
    centre = (counts.unsqueeze(-1) * X).sum(-2, keepdim=True) / counts.sum(-1)[..., None, None]
    S = counts.sqrt().unsqueeze(-1)
    X = S * (X - centre)
    targets = S * (F.one_hot(labels, n_way).to(X) - 1 / n_way)
    shares = counts / counts.sum(-1, keepdim=True)
    copies = [] if groups is None else _copies(groups)
    W = X.mT @ _dual_of_least_error(X @ X.mT, targets, shares, copies)
    return W.mT.to(features.dtype), -(centre @ W).squeeze(-2).to(features.dtype)


def _copies(groups: Tensor) -> list[Tensor]:
    """The rows of each group of several images; none if all images are in one group."""
    numbers, counts = groups.unique(return_counts=True)
    if len(numbers) < 2:
        return []
    return [(groups == number).nonzero()[:, 0] for number in numbers[counts > 1]]


def _dual_of_least_error(
    products: Tensor, targets: Tensor, shares: Tensor, copies: list[Tensor]
) -> Tensor:
    """The dual coefficients ``(K + λ I)⁻¹ Y`` of the best λ, for inner products K ``(..., n, n)``.

    The leave-one-out error of an image, from regression, centre and offset without it, is ``dual``
    divided by the diagonal of ``M = (K + λ I)⁻¹ − s sᵀ / λ``, where the squares of s are the shares
    of the images in the centre, ``w / Σ w``. For images g that are left out together, it is
    ``M[g, g]⁻¹ dual[g]``.
    """
    values: Tensor
    vectors: Tensor
    values, vectors = torch.linalg.eigh(products)
    scale = products.diagonal(dim1=-2, dim2=-1).mean(-1, keepdim=True).clamp(min=1e-12)
    turned = vectors.mT @ targets
    best, least = torch.zeros_like(targets), torch.full_like(scale, torch.inf)
    for strength in RIDGES.tolist():
        inverse = 1 / (values.clamp(min=0) + strength * scale)
        dual = vectors @ (inverse.unsqueeze(-1) * turned)
        diagonal = (vectors.square() * inverse.unsqueeze(-2)).sum(-1, keepdim=True)
        diagonal = diagonal - (shares / (strength * scale)).unsqueeze(-1)
        errors = dual / diagonal
        for rows in copies:
            part, root = vectors[..., rows, :], shares[..., rows].sqrt()
            block = (part * inverse.unsqueeze(-2)) @ part.mT
            block = block - root.unsqueeze(-1) * root.unsqueeze(-2) / (strength * scale)[..., None]
            errors[..., rows, :] = torch.linalg.solve(block, dual[..., rows, :])
        error = errors.square().sum((-2, -1)).unsqueeze(-1)
        best = torch.where((error < least).unsqueeze(-1), dual, best)
        least = torch.minimum(error, least)
    return best
