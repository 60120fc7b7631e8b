"""None of these: images that are unlike every class."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...errors import RunError
from .folds import NEVER

__all__ = ["Rejection", "fit_rejection"]


class Rejection(nn.Module):
    r"""How far an image is from every class, and the threshold above which it is none of them.

    .. math:: d(x) = 1 - \max_c \frac{x \cdot m_c}{\|x\|\,\|m_c\|}

    with x the features of an image and :math:`m_c` the mean of the unit-length features of class c.
    An image with a distance above ``threshold`` is none of these classes. The features need not
    have unit length.

    Args:
        means: ``(n_way, D)``.
        threshold: the largest distance of images that count as one of the classes.

    Shapes: features ``(N, D)`` in, distances ``(N,)`` out, at n_way · D multiply-adds per image.

    Example:
        >>> rejection = Rejection(torch.eye(2, 3), threshold=0.5)
        >>> rejection(torch.tensor([[2.0, 0.0, 0.0], [0.0, 0.0, 1.0]]))
        tensor([0., 1.])
        >>> rejection.accepts(torch.tensor([[2.0, 0.0, 0.0], [0.0, 0.0, 1.0]]))
        tensor([ True, False])
    """

    means: Tensor
    threshold: Tensor

    def __init__(self, means: Tensor, threshold: float) -> None:
        super().__init__()
        self.register_buffer("means", F.normalize(means))
        self.register_buffer("threshold", torch.tensor(threshold, dtype=means.dtype))

    def forward(self, features: Tensor) -> Tensor:
        return 1 - (F.normalize(features) @ self.means.mT).amax(1)

    def accepts(self, features: Tensor) -> Tensor:
        """Whether each image is like one of the classes."""
        distances: Tensor = self(features)
        return distances <= self.threshold


def fit_rejection(
    features: Tensor,
    labels: Tensor,
    n_way: int,
    parts: Tensor,
    accept: float = 0.95,
    features_after: Callable[[Tensor], Tensor | None] | None = None,
    groups: Tensor | None = None,
) -> Rejection | None:
    """A threshold that accepts this share of new images of the classes; None without tests.

    The distance of every image is measured from class means computed without its fold. Of n such
    distances, the threshold is the ⌈accept · (n + 1)⌉-th smallest, as in conformal prediction (Vovk
    et al., 2005): new images of the classes are then accepted about that often, and slightly more
    often, because the means of all images are better than those without a fold. Copies of an image
    count once, with their largest distance. With fewer than 19 distances the threshold is the
    largest, and the share may be less than 95 %.

    Measured by ``python -m experiments.trust`` at 95 %: 96.6, 95.2 and 95.2 % of new images of the
    classes are accepted with 5, 10 and 20 images per class. How many other images are rejected
    depends on the features. With ``cnn4-plain``, 91 and 84 % of images of ten other CIFAR-100
    classes are still accepted with 5 and 20 images per class: that network is too weak to tell them
    apart. With ``efficientnet_lite0``, 29 and 44 % of other birds are rejected with 5 and 20 images
    per class, 13 and 16 % of other cars, and almost all cars among birds or birds among cars
    (``python -m experiments.adapt.rejection``).

    Args:
        features: ``(N, D)``.
        labels: ``(N,)``.
        n_way: number of classes.
        parts: ``(N,)``, the fold of each image, as
            :func:`~neural_similarity.adapt.fold_numbers` returns it.
        accept: the share of images of the classes that is accepted.
        features_after: for a method that tunes the network: the features of all images, after a fit
            to the images in these rows. In a network that was tuned on an image, it is nearer to
            its class than a new one. Each network has its own scale, so a distance counts in units
            of the mean distance of the images that the network was tuned on. If it is None or
            returns None, fits do not change features.
        groups: ``(N,)``, the same number for near-identical images; by default every image is its
            own group.
    """
    if not 0 < accept < 1:
        raise RunError(f"fit_rejection: expected accept between 0 and 1, got {accept!r}.")
    groups = torch.arange(len(features)) if groups is None else groups
    distances, tuned = torch.zeros_like(features[:, 0]), False
    for number in parts[parts != NEVER].unique():
        here = parts == number
        after = None if features_after is None else features_after((~here).nonzero()[:, 0])
        own = features if after is None else after
        measure = Rejection(_means(own[~here], labels[~here], n_way), 0.0)
        scale = 1.0 if after is None else float(measure(own[~here]).mean())
        distances[here] = measure(own[here]) / max(scale, 1e-12)
        tuned = after is not None
    tested = parts != NEVER
    if not tested.any():
        return None
    means = _means(features, labels, n_way)
    unit = float(Rejection(means, 0.0)(features).mean()) if tuned else 1.0
    sorted_distances = _of_groups(distances[tested], groups[tested]).sort().values
    place = min(ceil(accept * (len(sorted_distances) + 1)), len(sorted_distances))
    return Rejection(means, unit * sorted_distances[max(place, 1) - 1].item())


def _of_groups(distances: Tensor, groups: Tensor) -> Tensor:
    """The largest distance in each group."""
    return torch.stack([distances[groups == number].max() for number in groups.unique()])


def _means(features: Tensor, labels: Tensor, n_way: int) -> Tensor:
    unit = F.normalize(features)
    return torch.stack([unit[labels == way].mean(0) for way in range(n_way)])
