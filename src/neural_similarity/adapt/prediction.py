"""The predictions of an adapted network: the only place that turns pixels into predictions."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import DataError
from .backbones.network_output import check_finite
from .methods import AdaptedNetwork
from .preprocessing import Preprocessing, in_threads

__all__ = ["Prediction", "Predictions", "predict_files", "predict_pixels"]


@dataclass(frozen=True, eq=False)
class Predictions:
    """The results for N images.

    Attributes:
        scores: ``(N, n_way)``.
        features: ``(N, D)``, what the scores are computed from.
        is_known: bool ``(N,)``: whether an image is like one of the classes. Without a
            :class:`~neural_similarity.adapt.Rejection` this is unknown, and true for all images.
    """

    scores: Tensor
    features: Tensor
    is_known: Tensor

    @property
    def probabilities(self) -> Tensor:
        """``(N, n_way)``."""
        return self.scores.softmax(1)


@dataclass(frozen=True, eq=False)
class Prediction:
    """The result for an image in a file.

    Attributes:
        file: its path.
        picture: uint8 ``(C, S, S)``, as the network takes it.
        probabilities: ``(n_way,)``.
        features: ``(D,)``.
        is_known: whether it is like one of the classes; if not, it is none of them.
    """

    file: str | os.PathLike[str]
    picture: Tensor
    probabilities: Tensor
    features: Tensor
    is_known: bool


@torch.no_grad()
def predict_pixels(
    network: AdaptedNetwork, preprocessing: Preprocessing, pixels: Tensor
) -> Predictions:
    """The results for uint8 images ``(N, C, S, S)``, as ``preprocessing.read`` returns them."""
    features = check_finite(network.features(preprocessing.normalise(pixels)))
    rejection = network.rejection
    is_known = rejection.accepts(features) if rejection else torch.ones(len(features)).bool()
    return Predictions(network.classifier(features), features, is_known)


def predict_files(
    network: AdaptedNetwork,
    preprocessing: Preprocessing,
    files: Sequence[str | os.PathLike[str]],
) -> list[Prediction | DataError]:
    """The result for each file, or the reason why there is none."""

    def read(file: str | os.PathLike[str]) -> Tensor | DataError:
        try:
            return preprocessing.read(file)
        except DataError as error:
            return error

    pictures = in_threads(read, files)
    good = [picture for picture in pictures if isinstance(picture, Tensor)]
    if not good:
        return [picture for picture in pictures if isinstance(picture, DataError)]
    results = predict_pixels(network, preprocessing, torch.stack(good))
    is_known = results.is_known.tolist()
    rows = iter(zip(results.probabilities, results.features, is_known, strict=True))
    return [
        Prediction(file, picture, *next(rows)) if isinstance(picture, Tensor) else picture
        for file, picture in zip(files, pictures, strict=True)
    ]
