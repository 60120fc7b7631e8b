"""The base class of the methods that adapt a backbone, and the network that they produce."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..training_images import TrainingImages
from ..validation import Rejection

__all__ = ["AdaptedNetwork", "Adapter", "RememberedFits"]

_BATCH = 64


class AdaptedNetwork(nn.Module):
    """Images to scores: a backbone and a linear layer on its features.

    The softmax of the scores gives the class probabilities.

    Args:
        backbone: images to features.
        classifier: features to scores.
        unit: whether the features are scaled to unit length.
        rejection: decides which images are none of the classes; None if unknown.
    """

    def __init__(
        self,
        backbone: nn.Module,
        classifier: nn.Linear,
        unit: bool,
        rejection: Rejection | None = None,
    ) -> None:
        super().__init__()
        self.backbone, self.classifier, self.unit = backbone, classifier, unit
        self.rejection = rejection

    @property
    def largest_distance(self) -> float | None:
        """The distance above which an image is none of the classes; None if unknown."""
        return None if self.rejection is None else self.rejection.threshold.item()

    def features(self, images: Tensor) -> Tensor:
        features: Tensor = self.backbone(images).flatten(1)
        return F.normalize(features) if self.unit else features

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.classifier(self.features(images))
        return scores


@dataclass(eq=False)
class Adapter:
    """A method, with a user's images and their features.

    ``fit`` changes no tensor: it returns what it learned.
    """

    data: TrainingImages

    def fit(self, rows: Tensor) -> Any:
        """The parameters learned from the images in these rows."""
        raise NotImplementedError

    def scores(self, learned: Any, rows: Tensor) -> Tensor:
        """Scores of the images in these rows."""
        raise NotImplementedError

    def network(self, learned: Any) -> AdaptedNetwork:
        """A new network that computes these scores."""
        raise NotImplementedError

    def features_after(self, learned: Any) -> Tensor | None:
        """The features ``(N, D)`` of all images after a fit; None if fits do not change them."""
        return None

    @torch.no_grad()
    def features_in(self, network: AdaptedNetwork) -> Tensor:
        """The features ``(N, D)`` of all images in a network returned by :meth:`network`."""
        normalise = self.data.backbone.preprocessing.normalise
        parts = torch.arange(len(self.data)).split(_BATCH)
        return torch.cat([network.features(normalise(self.data.pixels(part))) for part in parts])


@dataclass(eq=False)
class RememberedFits:
    """An adapter that fits to the same images once; cross-validation and rejection share fits."""

    adapter: Adapter
    fits: dict[bytes, Any] = field(default_factory=dict)

    def fit(self, rows: Tensor) -> Any:
        key = rows.numpy().tobytes()
        if key not in self.fits:
            self.fits[key] = self.adapter.fit(rows)
        return self.fits[key]

    def scores(self, learned: Any, rows: Tensor) -> Tensor:
        return self.adapter.scores(learned, rows)

    def features_after(self, rows: Tensor) -> Tensor | None:
        """The features of all images after a fit to those in these rows, if fits change them."""
        return self.adapter.features_after(self.fit(rows))
