"""Logistic regression on unit-length features, regularisation chosen within the support set.

Paper: its plain use on fixed features is the strong baseline of Tian et al. (2020),
"Rethinking Few-Shot Image Classification: a Good Embedding Is All You Need?",
https://arxiv.org/abs/2003.11539.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from ....errors import RunError
from ...inner_loop.logistic import minimise_cross_entropy, principal_basis
from ...network import FewShotNetwork
from ..registry import register_method
from .linear_classifiers import FittedClassifier

__all__ = ["STRENGTHS", "Linear", "balanced", "choose_strength", "fit_linear", "inner_folds"]

STRENGTHS = (2.0, 10.0, 50.0, 250.0, 1250.0)
"""The values of C to choose from: the weight of the cross-entropy relative to ½‖W‖²."""

_WITHOUT_CHOICE = 125.0  # with one image per class, none can be left out
_FOLDS = 5


@register_method
@dataclass(frozen=True)
class Linear(FittedClassifier):
    """A network trained on base classes; new classes by logistic regression on its features.

    Features are scaled to unit length, and :func:`fit_linear` fits the classifier, with C chosen
    for every episode. ``finetune`` takes a fixed number of gradient steps instead.

    Args:
        strength: C as in scikit-learn; None chooses one of :data:`STRENGTHS`.
    """

    strength: float | None = None

    name: ClassVar[str] = "linear"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.strength is not None and not self.strength > 0:
            raise RunError(f"Linear: expected strength above 0, got {self.strength}.")

    def fit(
        self, network: FewShotNetwork, features: Tensor, labels: Tensor, n_way: int
    ) -> tuple[Tensor, Tensor]:
        return fit_linear(features, labels, n_way, strength=self.strength)


def fit_linear(
    features: Tensor,
    labels: Tensor,
    n_way: int,
    mirrored: Tensor | None = None,
    strength: float | None = None,
) -> tuple[Tensor, Tensor]:
    r"""Weight ``(..., n_way, D)`` and bias ``(..., n_way)`` of multinomial logistic regression.

    .. math:: \min_{W, b} \; C \sum_i w_i \, \mathrm{CE}(W x_i + b, y_i) + \frac12 \|W\|^2

    The bias has no penalty. The weights :math:`w_i` let every class count the same; their mean is
    one. Computed in float64, in the span of the features.

    Args:
        features: ``(..., n, D)``, of one support set or of many at once.
        labels: ``(n,)``, the same for every support set; every class has an image.
        n_way: number of classes.
        mirrored: ``(..., n, D)``, features of the mirror images. Then an image and its mirror image
            count half each.
        strength: C; None chooses it by :func:`choose_strength`.
    """
    rows = features if mirrored is None else torch.cat((features, mirrored), dim=-2)
    X = rows.reshape(-1, *rows.shape[-2:]).double()
    if strength is None:
        strengths = choose_strength(X[:, : len(labels)], labels, n_way)
    else:
        strengths = X.new_tensor([strength])
    views = X.shape[1] // len(labels)
    weights = balanced(torch.ones_like(labels)[:, None], labels, n_way).to(X)
    centre = X.mean(-2, keepdim=True)
    basis = principal_basis(X - centre)
    V = _solve(
        (X - centre) @ basis, labels.repeat(views), weights.repeat(views, 1) / views, strengths,
        X.new_zeros(len(X), basis.shape[-1] + 1, 1, n_way), 5e-6,
    )  # fmt: skip
    W = (basis @ V[:, :-1, 0]).mT
    bias = V[:, -1, 0] - (W @ centre.mT).squeeze(-1)
    shape = (*rows.shape[:-2], n_way)
    return W.reshape(*shape, -1).to(rows.dtype), bias.reshape(shape).to(rows.dtype)


def choose_strength(features: Tensor, labels: Tensor, n_way: int) -> Tensor:
    """The best value ``(E,)`` of :data:`STRENGTHS` for each support set ``(E, n, D)``.

    It has the lowest cross-entropy of images that are left out, in the folds of
    :func:`inner_folds`; every class counts the same.
    """
    folds = inner_folds(labels)
    count = int(folds.max()) + 1
    if count < 2:
        return features.new_full((len(features),), _WITHOUT_CHOICE)
    X = features - features.mean(-2, keepdim=True)
    X = X @ principal_basis(X)
    weights = balanced(folds[:, None] != torch.arange(count).to(folds), labels, n_way).to(X)
    shares = balanced((folds >= 0)[:, None], labels, n_way).to(X)[:, 0]
    V = X.new_zeros(len(X), X.shape[-1] + 1, count, n_way)
    rows, own, losses = torch.arange(len(folds)), folds.clamp(min=0), []
    for strength in STRENGTHS:  # from strong to weak penalties: a warm start
        V = _solve(X, labels, weights, X.new_tensor([strength]), V, 3e-3)
        scores = (X @ V[:, :-1].flatten(2)).unflatten(2, V.shape[2:]) + V[:, -1:]
        own_fold = scores[:, rows, own].log_softmax(-1)[:, rows, labels]
        losses.append(-(own_fold * shares).sum(1))
    return X.new_tensor(STRENGTHS)[torch.stack(losses).argmin(0)]


def balanced(used: Tensor, labels: Tensor, n_way: int) -> Tensor:
    """Weights ``(n, P)`` that let all classes count the same, in P selections of images.

    The mean weight of the images that are used, a column of ``used``, is one; others weigh zero.

    >>> balanced(torch.tensor([[True], [True], [True], [False]]), torch.tensor([0, 0, 1, 1]), 2)
    tensor([[0.7500],
            [0.7500],
            [1.5000],
            [0.0000]], dtype=torch.float64)
    """
    images = used.double()
    counts = torch.zeros(n_way, used.shape[1]).to(images).index_add_(0, labels, images)
    return images * images.sum(0) / ((counts > 0).sum(0) * counts[labels].clamp(min=1))


def inner_folds(labels: Tensor, most: int = _FOLDS) -> Tensor:
    """The fold ``(n,)`` in which each image is left out; −1 for the only image of its class.

    Neighbours stay together: files of similar names are often similar images.

    >>> inner_folds(torch.tensor([0, 0, 0, 0, 1, 1, 2]), 3).tolist()
    [0, 0, 1, 2, 0, 1, -1]
    """
    counts = torch.bincount(labels)
    folds = min(most, int(counts.max()))
    members = F.one_hot(labels).cumsum(0)
    places = members.gather(1, labels[:, None])[:, 0] - 1
    return torch.where(counts[labels] > 1, places * folds // counts[labels], -1)


def _solve(
    X: Tensor, labels: Tensor, weights: Tensor, strengths: Tensor, start: Tensor, tolerance: float
) -> Tensor:
    """V ``(E, r + 1, P, n_way)`` from coordinates ``(E, n, r)``; the last coordinate is a bias.

    There is one C per support set, or one for all.
    """
    penalties = (1 / strengths)[:, None, None].repeat(1, X.shape[-1] + 1, 1)
    penalties[:, -1] = 0
    with_bias = F.pad(X, (0, 1), value=1.0)
    return minimise_cross_entropy(with_bias, labels, weights, penalties, start, tolerance)
