"""A network that returns features, together with its preprocessing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from ..preprocessing import Preprocessing

__all__ = ["FeatureExtractor"]


@dataclass(frozen=True, eq=False)
class FeatureExtractor:
    """A network from images to features, and how images are prepared for it.

    Args:
        module: takes ``(N, C, S, S)`` and returns features; it is used as is, in evaluation mode.
        preprocessing: how images are prepared.
        name: its name in messages and reports.
        source: how to build the module again, for files; None if unknown.
        card: a description for people: data, recipe, results, limits.
        base_classifier: the classifier that the module was trained with, ``(classes, D + 1)``: a
            row of weights for each base class, then its bias, as
            :func:`~neural_similarity.fewshot.methods.classifiers.laplace.classifier_rows` returns
            them. It takes the module's features unscaled. Method ``laplace`` needs it; None if
            unknown.
        tuned: whether the module was tuned to a user's images, as in a loaded classifier. Nothing
            is learned on it again: on these images its accuracy would be overestimated.
    """

    module: nn.Module = field(repr=False)
    preprocessing: Preprocessing
    name: str = "a module"
    source: Mapping[str, Any] | None = field(default=None, repr=False)
    card: str = field(default="", repr=False)
    base_classifier: Tensor | None = field(default=None, repr=False)
    tuned: bool = field(default=False, repr=False)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """``(C, S, S)`` of the images that the module takes."""
        side = self.preprocessing.image_size
        return self.preprocessing.channels, side, side
