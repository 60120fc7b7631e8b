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
    """A linear classifier on features that do not change, so they are computed once.

    Args:
        data: the images and their features.
        make: the classifier, from features, labels and the number of classes, and with ``mirrors``
            also from the features of the mirror images.
        unit: whether the features are scaled to unit length.
        mirrors: whether it also learns from mirror images.
    """

    make: Callable[..., nn.Linear] = heads.prototypes
    unit: bool = True
    mirrors: bool = False

    def __post_init__(self) -> None:
        self.features, self.mirrored = self.data.features, self.data.mirrored
        if self.unit:
            self.features, self.mirrored = map(F.normalize, (self.features, self.mirrored))

    def fit(self, rows: Tensor) -> nn.Linear:
        fits, key = self.data.fits, (self.make, rows.numpy().tobytes())
        if key not in fits:
            more = (self.mirrored[rows],) if self.mirrors else ()
            fits[key] = self.make(
                self.features[rows], self.data.labels[rows], self.data.n_way, *more
            )
        return fits[key]

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
class EnsembleAdapter(HeadAdapter):
    """Logistic and ridge regression, averaged: one classifier again."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.parts = (
            HeadAdapter(self.data, heads.logistic, mirrors=True),
            HeadAdapter(self.data, heads.ridge),
        )

    def fit(self, rows: Tensor) -> nn.Linear:
        share = heads.share_of_ridge(len(rows) / self.data.n_way)
        logistic, ridge = self.parts
        return heads.average(logistic.fit(rows), ridge.fit(rows), share)
