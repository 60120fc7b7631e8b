"""Linear classifiers for a few images of each class.

Unlike in an episode, classes may have different numbers of images. Every class still counts the
same: an image is weighted by the inverse of its class's size. If all classes have equally many
images, these are the classifiers of the few-shot methods of the same names.

Shapes: features X ``(n, D)``, labels ``(n,)`` from 0 to ``n_way − 1``.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..fewshot.inner_loop.support_sgd import SupportSGD
from ..fewshot.methods.classifiers.laplace import fit_laplace, gaussian_prior
from ..fewshot.methods.classifiers.linear import fit_linear
from ..fewshot.methods.classifiers.ridge import fit_ridge

__all__ = [
    "SCALE", "average", "class_weights", "laplace", "linear", "logistic", "prototypes", "ridge",
    "share_of_ridge", "tuned",
]  # fmt: skip

SCALE = 10.0
"""The factor of scores of unit-length features, as in the few-shot method ``ridge``."""


def class_weights(labels: Tensor, n_way: int) -> Tensor:
    """A weight for every image, so that all classes count the same; the mean weight is one.

    >>> class_weights(torch.tensor([0, 0, 0, 1]), 2).tolist()
    [0.6666666865348816, 0.6666666865348816, 0.6666666865348816, 2.0]
    """
    counts = torch.bincount(labels, minlength=n_way)
    return len(labels) / (n_way * counts[labels])


def linear(weight: Tensor, bias: Tensor) -> nn.Linear:
    """A layer with this weight and bias, in their precision."""
    layer = nn.Linear(weight.shape[1], weight.shape[0], dtype=weight.dtype)
    with torch.no_grad():
        layer.weight.copy_(weight)
        layer.bias.copy_(bias)
    return layer.requires_grad_(False)


def prototypes(features: Tensor, labels: Tensor, n_way: int) -> nn.Linear:
    """The nearest mean p: ``2 p·x − ‖p‖²`` is ``−‖x − p‖²`` up to ``‖x‖²``, which classes share."""
    means = torch.stack([features[labels == way].mean(0) for way in range(n_way)])
    return linear(2 * SCALE * means, -SCALE * means.square().sum(1))


def ridge(features: Tensor, labels: Tensor, n_way: int, groups: Tensor | None = None) -> nn.Linear:
    """Ridge regression.

    By :func:`~neural_similarity.fewshot.methods.classifiers.ridge.fit_ridge`.
    """
    weight, bias = fit_ridge(features, labels, n_way, class_weights(labels, n_way), groups)
    return linear(SCALE * weight, SCALE * bias)


def logistic(features: Tensor, labels: Tensor, n_way: int, mirrored: Tensor) -> nn.Linear:
    """Logistic regression.

    By :func:`~neural_similarity.fewshot.methods.classifiers.linear.fit_linear`.
    """
    return linear(*fit_linear(features, labels, n_way, mirrored))


def share_of_ridge(images: float) -> float:
    """The weight of ridge regression in the ensemble, given the images per class.

    The more images, the better it is. Measured by ``python -m experiments.adapt.shares``, on
    validation classes.

    >>> [share_of_ridge(images) for images in (1, 10, 20, 30)]
    [0.025, 0.25, 0.5, 0.5]
    """
    return min(images / 40, 0.5)


def average(first: nn.Linear, second: nn.Linear, share: float) -> nn.Linear:
    """Two classifiers averaged; ``share`` is the second's, rescaled to the first's length."""
    factor = share * first.weight.norm() / second.weight.norm().clamp(min=1e-12)
    return linear(
        (1 - share) * first.weight + factor * second.weight,
        (1 - share) * first.bias + factor * second.bias,
    )


def laplace(
    features: Tensor, labels: Tensor, n_way: int, mirrored: Tensor, base_classifier: Tensor
) -> nn.Linear:
    """The most probable classifier, if its rows have the distribution of the base classes' rows.

    By :func:`~neural_similarity.fewshot.methods.classifiers.laplace.fit_laplace`.
    """
    prior = gaussian_prior(base_classifier)
    return linear(*fit_laplace(features, labels, n_way, prior, mirrored))


def tuned(features: Tensor, labels: Tensor, n_way: int, method: SupportSGD) -> nn.Linear:
    """Cross-entropy by the method's gradient descent, from zero."""
    one_hot = F.one_hot(labels, n_way).to(features.dtype)
    weights = class_weights(labels, n_way).to(features.dtype)[:, None]

    def gradients(tensors: list[Tensor], rows: Tensor) -> list[Tensor]:
        weight, bias = tensors
        batch = features[rows]
        errors = (F.linear(batch, weight, bias).softmax(1) - one_hot[rows]) * weights[rows]
        errors = errors / len(rows)
        return [errors.mT @ batch, errors.sum(0)]

    start = [features.new_zeros(n_way, features.shape[1]), features.new_zeros(n_way)]
    return linear(*method.descend(start, gradients, len(features)))
