"""Images whose label is likely wrong: cross-validation confidently predicts another class."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

__all__ = ["Suspect", "likely_wrong_labels"]


class Suspect(NamedTuple):
    """An image that looks like one of another class."""

    row: int
    """Its index among the training images."""
    given: int
    """The class of its label."""
    predicted: int
    """The class that it looks like."""
    probability: float
    """Of the predicted class, by a classifier that was trained without the image."""


def likely_wrong_labels(
    probabilities: Tensor, labels: Tensor, rows: Tensor, threshold: float = 0.8
) -> tuple[Suspect, ...]:
    """The images that are confidently predicted as another class than their label.

    The most probable come first. If the probabilities are calibrated, at least a share of
    ``threshold`` of them are mislabelled or hard to tell; look at the pictures.

    Args:
        probabilities: ``(n, n_way)``, by classifiers that were trained without the image.
        labels: ``(n,)``.
        rows: ``(n,)``, the indices of these images among all.
        threshold: the lowest probability of the other class.

    >>> import torch
    >>> sure = torch.tensor([[0.95, 0.05], [0.9, 0.1], [0.6, 0.4]])
    >>> [s.row for s in likely_wrong_labels(sure, torch.tensor([0, 1, 1]), torch.arange(3))]
    [1]
    """
    probability, predicted = probabilities.max(1)
    places = ((predicted != labels) & (probability >= threshold)).nonzero()[:, 0]
    places = places[probability[places].argsort(descending=True, stable=True)]
    return tuple(
        Suspect(
            int(rows[place]),
            int(labels[place]),
            int(predicted[place]),
            round(float(probability[place]), 4),
        )
        for place in places
    )
