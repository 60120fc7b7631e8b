"""Confidence against accuracy: temperature, calibration error, reliability diagram.

Paper: Guo et al. (2017), "On Calibration of Modern Neural Networks",
https://arxiv.org/abs/1706.04599. Bins of equal size instead of equal width:
Nixon et al. (2019), "Measuring Calibration in Deep Learning", https://arxiv.org/abs/1904.01685.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

__all__ = [
    "Bin",
    "Calibration",
    "held_out_probabilities",
    "measure_calibration",
    "temperature",
]

_OCTAVES = torch.arange(-8.0, 8.25, 0.25)  # temperatures to choose from, around the usual lead
_MOST_BINS, _IMAGES_PER_BIN = 10, 10


class Bin(NamedTuple):
    """Images of similar confidence: a point of a reliability diagram."""

    confidence: float
    """Their mean confidence."""
    accuracy: float
    """The share classified correctly."""
    images: int


@dataclass(frozen=True)
class Calibration:
    """How well confidence matches accuracy.

    Attributes:
        bins: from the least to the most confident images, equally many in each.
    """

    bins: tuple[Bin, ...]

    @property
    def error(self) -> float:
        """The expected calibration error: the mean of |accuracy − confidence| over the images.

        With few images per bin it is above zero by chance, even if confidences are perfect: with
        ten images per bin and an accuracy of 80 %, by about 10 points.
        """
        images = sum(part.images for part in self.bins)
        return (
            sum(part.images * abs(part.accuracy - part.confidence) for part in self.bins) / images
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for a file."""
        return {"bins": [list(part) for part in self.bins]}

    @classmethod
    def from_dict(cls, values: Mapping[str, Sequence[Any]]) -> Calibration:
        """The inverse of :meth:`to_dict`."""
        return cls(tuple(Bin(*part) for part in values["bins"]))


def measure_calibration(
    probabilities: Tensor, labels: Tensor, bins: int | None = None
) -> Calibration:
    """Compare the highest probability of every image with whether that class is correct.

    Args:
        probabilities: ``(N, n_way)``.
        labels: ``(N,)``.
        bins: number of bins; by default up to ten, with at least ten images in each.

    >>> half_sure = torch.tensor([[0.5, 0.5]]).repeat(20, 1)
    >>> measure_calibration(half_sure, torch.zeros(20, dtype=int)).error
    0.5
    """
    if bins is None:
        bins = max(1, min(_MOST_BINS, len(labels) // _IMAGES_PER_BIN))
    confidences, predicted = probabilities.double().max(1)
    order = confidences.argsort(stable=True)
    values, places, counts = confidences.unique(return_inverse=True, return_counts=True)
    # Images of equal confidence share their accuracy, so that their order does not matter.
    right = torch.zeros_like(values).index_add_(0, places, (predicted == labels).double())
    correct = (right / counts)[places]
    parts = [part for part in order.tensor_split(bins) if len(part)]
    return Calibration(
        tuple(
            Bin(confidences[part].mean().item(), correct[part].mean().item(), len(part))
            for part in parts
        )
    )


def held_out_probabilities(scores: Tensor, labels: Tensor, parts: Tensor) -> Tensor:
    """Probabilities ``(N, n_way)`` with temperatures fitted without the image.

    The scores of every fold are divided by the temperature fitted to the other folds.

    Args:
        scores: ``(N, n_way)``, each by a classifier that was trained without the image.
        labels: ``(N,)``.
        parts: ``(N,)``, the folds.
    """
    probabilities = torch.empty_like(scores)
    for number in parts.unique():
        here = parts == number
        probabilities[here] = (scores[here] / temperature(scores[~here], labels[~here])).softmax(1)
    return probabilities


def temperature(scores: Tensor, labels: Tensor) -> float:
    """The divisor of scores for which their softmax matches how often predictions are correct.

    One pseudo-image, with equal weight for every class, keeps it above zero if all are correct. It
    is a power of the fourth root of two, up to about 256 times larger or smaller than the mean lead
    of the highest score over the mean of an image's scores.
    """
    lead = (scores.amax(1) - scores.mean(1)).mean() if len(scores) else scores.new_zeros(())
    if not lead > 0:
        return 1.0
    typical = scores.sort(1).values.mean(0)
    temperatures = 2 ** (lead.log2().round() + _OCTAVES.to(scores))
    divisors = temperatures[:, None, None]
    log_probabilities = (scores / divisors).log_softmax(2)
    losses = -log_probabilities[:, torch.arange(len(labels)), labels].sum(1)
    losses = losses - (typical / divisors).log_softmax(2).mean((1, 2))
    return temperatures[int(losses.argmin())].item()
