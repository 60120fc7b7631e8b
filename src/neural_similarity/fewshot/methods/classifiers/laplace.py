"""Discriminative k-shot learning (Bauer et al., 2017).

Paper: "Discriminative k-shot learning using probabilistic models",
https://arxiv.org/abs/1706.00326.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from ....errors import ShapeError
from ...inner_loop.logistic import minimise_cross_entropy, principal_basis
from ...network import FewShotNetwork
from ..registry import register_method
from .linear import balanced
from .linear_classifiers import FittedClassifier

__all__ = ["Covariance", "Laplace", "classifier_rows", "fit_laplace", "gaussian_prior"]

Covariance = Literal["isotropic", "diagonal"]


@register_method
@dataclass(frozen=True)
class Laplace(FittedClassifier):
    """A network trained on base classes; its classifier gives the prior of new classifiers.

    The rows of the base-class classifier are samples of what a row looks like: a Gaussian is fitted
    to them. New classes get the most probable classifier, given this prior and the support set
    (:func:`fit_laplace`): the point at which Laplace's method approximates the posterior. Features
    are not scaled, because the rows belong to them as they are.

    The prior has nothing to tune, and may be too narrow for classes that are more alike than the
    base classes: cars of different makes, for example.

    Args:
        covariance: of the prior: ``"isotropic"``, one variance for all weights, as in the paper's
            simplest model, or ``"diagonal"``, one for the weight of each feature. The bias has its
            own.
    """

    covariance: Covariance = "isotropic"

    name: ClassVar[str] = "laplace"
    unit: ClassVar[bool] = False
    needs_base_classifier: ClassVar[bool] = True

    def fit(
        self, network: FewShotNetwork, features: Tensor, labels: Tensor, n_way: int
    ) -> tuple[Tensor, Tensor]:
        rows = classifier_rows(network.head)
        if rows is None:
            raise ShapeError(
                f"Laplace: expected a linear head with the rows of base classes, got "
                f"{type(network.head).__name__}. Build the network with this method."
            )
        return fit_laplace(features, labels, n_way, gaussian_prior(rows, self.covariance))


def classifier_rows(layer: nn.Module) -> Tensor | None:
    """The rows ``(classes, D + 1)`` of a linear layer, weights then bias; None for any other layer.

    >>> classifier_rows(nn.Linear(5, 3)).shape
    torch.Size([3, 6])
    """
    if not isinstance(layer, nn.Linear) or type(layer).forward is not nn.Linear.forward:
        return None
    weight = layer.weight.detach()
    bias = weight.new_zeros(len(weight)) if layer.bias is None else layer.bias.detach()
    return torch.cat((weight, bias.unsqueeze(1)), dim=1)


def gaussian_prior(rows: Tensor, covariance: Covariance = "isotropic") -> tuple[Tensor, Tensor]:
    """Mean and standard deviation ``(D + 1,)`` of a classifier's rows ``(classes, D + 1)``.

    The last entry of a row is its bias, which has its own variance.

    >>> mean, deviation = gaussian_prior(torch.tensor([[0.0, 2.0, 1.0], [4.0, 2.0, 1.0]]))
    >>> mean.tolist(), deviation.tolist()
    ([2.0, 2.0, 1.0], [1.4142135623730951, 1.4142135623730951, 0.0])
    """
    exact = rows.double()
    variance = exact.var(0, correction=0)
    if covariance == "isotropic":
        variance[:-1] = variance[:-1].mean()
    return exact.mean(0), variance.sqrt()


def fit_laplace(
    features: Tensor,
    labels: Tensor,
    n_way: int,
    prior: tuple[Tensor, Tensor],
    mirrored: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    r"""The most probable weight ``(..., n_way, D)`` and bias ``(..., n_way)``.

    .. math:: \max_{w_1, \dots} \; \sum_i c_i \log p(y_i \mid x_i, w)
        + \sum_k \log \mathcal N(w_k \mid \mu, \operatorname{diag}(\sigma^2))

    with ``p`` the softmax of :math:`w_k^\top (x_i, 1)`. The weights :math:`c_i` let every class
    count the same; their mean is one. With :math:`w_k = \mu + \sigma v_k` this is logistic
    regression on features times σ, with penalty ½‖v‖²: the mean adds the same to the scores of all
    classes. Computed in float64, in the span of the features.

    Args:
        features: ``(..., n, D)``, of one support set or of many at once, as the base classifier
            took them.
        labels: ``(n,)``, the same for every support set; every class has an image.
        n_way: number of classes.
        prior: mean μ and standard deviation σ, each ``(D + 1,)``.
        mirrored: ``(..., n, D)``, features of the mirror images. Then an image and its mirror image
            count half each.
    """
    rows = features if mirrored is None else torch.cat((features, mirrored), dim=-2)
    mean, deviation = (part.to(rows.device, torch.float64) for part in prior)
    if mean.shape != (rows.shape[-1] + 1,):
        raise ShapeError(
            f"fit_laplace: expected a prior of {rows.shape[-1] + 1} numbers, one per feature and "
            f"one for the bias, got {tuple(mean.shape)}. It must come from a classifier of these "
            f"features."
        )
    X = nn.functional.pad(rows.reshape(-1, *rows.shape[-2:]).double(), (0, 1), value=1.0)
    X = X * deviation
    basis = principal_basis(X)
    views = X.shape[1] // len(labels)
    weights = balanced(torch.ones_like(labels)[:, None], labels, n_way).repeat(views, 1) / views
    V = minimise_cross_entropy(
        X @ basis, labels.repeat(views), weights, X.new_ones(1, 1, 1),
        X.new_zeros(len(X), basis.shape[-1], 1, n_way),
    )  # fmt: skip
    W = mean + deviation * (basis @ V[:, :, 0]).mT
    W = W.reshape(*rows.shape[:-2], n_way, -1).to(rows.dtype)
    return W[..., :-1], W[..., -1]
