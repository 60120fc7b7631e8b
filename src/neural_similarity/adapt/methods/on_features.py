"""Methods that learn a linear classifier on the features of an unchanged backbone."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import linear_heads as heads
from .base import AdaptedNetwork, Adapter

__all__ = ["EnsembleAdapter", "HeadAdapter"]


@dataclass(eq=False)
class HeadAdapter(Adapter):
    """A linear classifier on features that do not change, computed once.

    The last classifier is cached for the ensemble.

    Args:
        data: the images and their features.
        make: fits the classifier to features, labels and the number of classes; with ``mirrors``,
            also to the features of the mirror images; with ``copies``, also to group numbers.
        unit: whether the features are scaled to unit length.
        mirrors: whether it also learns from mirror images.
        copies: whether it gets the group numbers of near-identical images.
    """

    make: Callable[..., nn.Linear] = heads.prototypes
    unit: bool = True
    mirrors: bool = False
    copies: bool = False

    def __post_init__(self) -> None:
        self.features, self.mirrored = self.data.features, self.data.mirrored
        if self.unit:
            self.features, self.mirrored = map(F.normalize, (self.features, self.mirrored))
        self._last: tuple[Tensor, nn.Linear] | None = None

    def fit(self, rows: Tensor) -> nn.Linear:
        if self._last is None or not torch.equal(self._last[0], rows):
            more: tuple[Tensor, ...] = (self.mirrored[rows],) if self.mirrors else ()
            more += (self.data.groups[rows],) if self.copies else ()
            labels = self.data.labels[rows]
            learned = self.make(self.features[rows], labels, self.data.n_way, *more)
            self._last = rows, learned
        return self._last[1]

    @torch.no_grad()
    def scores(self, learned: nn.Linear, rows: Tensor) -> Tensor:
        scores: Tensor = learned(self.features[rows])
        return scores

    def network(self, learned: nn.Linear) -> AdaptedNetwork:
        parts = copy.deepcopy((self.data.backbone.module, learned))
        network = AdaptedNetwork(*parts, self.unit)
        return network.eval().requires_grad_(False)

    def features_in(self, network: AdaptedNetwork) -> Tensor:
        return self.features


@dataclass(eq=False)
class EnsembleAdapter(Adapter):
    """Logistic and ridge regression on unit-length features, averaged into one classifier.

    Args:
        data: the images and their features.
        linear, ridge: the methods of these names.
    """

    linear: HeadAdapter
    ridge: HeadAdapter

    def fit(self, rows: Tensor) -> nn.Linear:
        share = heads.share_of_ridge(len(rows) / self.data.n_way)
        return heads.average(self.linear.fit(rows), self.ridge.fit(rows), share)

    def scores(self, learned: nn.Linear, rows: Tensor) -> Tensor:
        return self.linear.scores(learned, rows)

    def network(self, learned: nn.Linear) -> AdaptedNetwork:
        return self.linear.network(learned)

    def features_in(self, network: AdaptedNetwork) -> Tensor:
        return self.linear.features_in(network)
