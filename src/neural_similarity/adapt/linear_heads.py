"""Linear classifiers for few images of each class, as many of each as there are.

Unlike in an episode, classes may have different numbers of images. Every class counts the same all
the same: images are weighted by the inverse of their class's number. Where all have equally many,
these are the classifiers of the methods of the same name.

Shapes: features X ``(n, D)``, labels ``(n,)`` from 0 to ``n_way − 1``.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..fewshot.inner_loop.support_sgd import SupportSGD

__all__ = ["SCALE", "class_weights", "linear", "prototypes", "ridge", "tuned"]

SCALE = 10.0
"""What scores of unit features are multiplied by where nothing better is known, as in R2D2."""
_RIDGES = 10.0 ** torch.arange(-3.0, 1.5, 0.5, dtype=torch.float64)


def class_weights(labels: Tensor, n_way: int) -> Tensor:
    """A weight for every image, so that classes count the same; their mean is one.

    >>> class_weights(torch.tensor([0, 0, 0, 1]), 2).tolist()
    [0.6666666865348816, 0.6666666865348816, 0.6666666865348816, 2.0]
    """
    counts = torch.bincount(labels, minlength=n_way)
    return len(labels) / (n_way * counts[labels])


def linear(weight: Tensor, bias: Tensor) -> nn.Linear:
    """A layer of these numbers."""
    layer = nn.Linear(weight.shape[1], weight.shape[0])
    with torch.no_grad():
        layer.weight.copy_(weight)
        layer.bias.copy_(bias)
    return layer.requires_grad_(False)


def prototypes(features: Tensor, labels: Tensor, n_way: int) -> nn.Linear:
    """The nearest mean p: ``2 p·x − ‖p‖²`` is ``−‖x − p‖²`` but for what all classes share."""
    means = torch.stack([features[labels == way].mean(0) for way in range(n_way)])
    return linear(2 * SCALE * means, -SCALE * means.square().sum(1))


def ridge(features: Tensor, labels: Tensor, n_way: int) -> nn.Linear:
    r"""Ridge regression of centred features on one-hot labels.

    .. math:: W = X^\top S (S X X^\top S + \lambda I)^{-1} S Y

    with S the root of the images' weights. λ is the one of a grid whose squared error is least
    when every image in turn is left out; that error has a closed form.
    """
    X, weights = features.double(), class_weights(labels, n_way).double()
    centre = (weights[:, None] * X).sum(0) / weights.sum()
    X = X - centre
    S = weights.sqrt()[:, None]
    targets = S * (F.one_hot(labels, n_way).double() - 1 / n_way)
    products = (S * X) @ (S * X).mT
    dual = _least_error(products, targets)
    W = (S * X).mT @ dual
    return linear(SCALE * W.mT, -SCALE * centre @ W)


def tuned(features: Tensor, labels: Tensor, n_way: int, method: SupportSGD) -> nn.Linear:
    """Cross-entropy by the method's gradient descent, from zero."""
    one_hot = F.one_hot(labels, n_way).to(features.dtype)
    weights = class_weights(labels, n_way).to(features.dtype)[:, None]

    def gradients(tensors: list[Tensor], rows: Tensor) -> list[Tensor]:
        weight, bias = tensors
        shown = features[rows]
        wrong = (F.linear(shown, weight, bias).softmax(1) - one_hot[rows]) * weights[rows]
        wrong = wrong / len(rows)
        return [wrong.mT @ shown, wrong.sum(0)]

    start = [features.new_zeros(n_way, features.shape[1]), features.new_zeros(n_way)]
    return linear(*method.descend(start, gradients, len(features)))


def _least_error(products: Tensor, targets: Tensor) -> Tensor:
    """The dual coefficients ``(K + λ I)⁻¹ Y`` of the best λ, relative to the mean of K's diagonal.

    The error of an image that is left out is ``dual / diagonal of (K + λ I)⁻¹``.
    """
    values: Tensor
    vectors: Tensor
    values, vectors = torch.linalg.eigh(products)
    scale = products.diagonal().mean().clamp(min=1e-12)
    turned, duals, errors = vectors.mT @ targets, [], []
    for strength in (_RIDGES * scale).tolist():
        inverse = 1 / (values.clamp(min=0) + strength)
        dual: Tensor = vectors @ (inverse[:, None] * turned)
        diagonal = (vectors.square() * inverse).sum(1, keepdim=True)
        duals.append(dual)
        errors.append((dual / diagonal).square().sum().item())
    return duals[errors.index(min(errors))]
