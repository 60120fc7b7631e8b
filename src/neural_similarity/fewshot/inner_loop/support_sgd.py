"""Tuning on the support set of an episode, by the paper's stochastic gradient descent.

A linear classifier that begins at zero, or at prototypes, stays a combination of the support
features X: ``W = Aᵀ X``. So all of its training happens in the coefficients A ``(n, n_way)`` and
the products of features ``X Xᵀ (n, n)``, whatever the number of features, and for many episodes at
once. The steps are those of ``torch.optim.SGD``, in exact arithmetic the very same.

Within the steps episodes are the last axis, ``(n, n_way, B)``: the others are short, and what runs
along a short axis of memory is slow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ..batches import query_labels

__all__ = [
    "Start",
    "SupportSGD",
    "dots_of",
    "one_hot",
    "products_of",
    "prototype_classifier",
]

Start = Literal["zero", "prototypes"]


@dataclass(frozen=True)
class SupportSGD:
    """What methods that tune have in common: the paper's optimiser (Appendix C).

    Args:
        epochs: passes over the support set.
        batch_size: images a step; None is the whole support set. Four is CloserLook's, whose
            optimiser the paper's is. The order is the same in every episode.
        lr, momentum, dampening, weight_decay: as of ``torch.optim.SGD``.
    """

    epochs: int = 100
    batch_size: int | None = 4
    lr: float = 0.01
    momentum: float = 0.9
    dampening: float = 0.9
    weight_decay: float = 0.001

    def batches(self, images: int) -> Iterator[Tensor]:
        """Which of the support images make up each step."""
        generator = torch.Generator().manual_seed(0)
        for _ in range(self.epochs):
            if self.batch_size is None or self.batch_size >= images:
                yield torch.arange(images)
            else:
                yield from torch.randperm(images, generator=generator).split(self.batch_size)

    def descend(
        self,
        start: list[Tensor],
        gradients: Callable[[list[Tensor], Tensor], list[Tensor]],
        images: int,
    ) -> list[Tensor]:
        """Where ``start`` ends after all steps along ``gradients(tensors, rows)``.

        The tensors that ``gradients`` is given are changed in place after it returns.
        """
        tensors = [tensor.clone() for tensor in start]
        momenta: list[Tensor] = []
        share = 1 - self.dampening if self.momentum else 1.0  # as in PyTorch
        for batch in self.batches(images):
            slopes = gradients(tensors, batch.to(start[0].device))
            if not momenta:
                momenta = [
                    slope.add(tensor, alpha=self.weight_decay)
                    for slope, tensor in zip(slopes, tensors, strict=True)
                ]
            else:
                for momentum, slope, tensor in zip(momenta, slopes, tensors, strict=True):
                    momentum.mul_(self.momentum).add_(slope, alpha=share)
                    momentum.add_(tensor, alpha=share * self.weight_decay)
            for tensor, momentum in zip(tensors, momenta, strict=True):
                tensor.sub_(momentum, alpha=self.lr)
        return tensors


def one_hot(n_way: int, n_shot: int, like: Tensor) -> Tensor:
    """The labels of a support set, ``(n_way · n_shot, n_way)``."""
    return F.one_hot(query_labels(n_way, n_shot, like.device), n_way).to(like.dtype)


def products_of(X: Tensor) -> Tensor:
    """``X Xᵀ`` of features ``(B, n, D)``, as ``(n, n, B)``."""
    return (X @ X.mT).permute(1, 2, 0).contiguous()


def dots_of(products: Tensor, A: Tensor) -> Tensor:
    """``X W`` of ``W = Aᵀ X``: products ``(m, n, B)`` with A ``(n, n_way, B)``.

    One row after the other, as all at once would take m times the memory of A.
    """
    return torch.stack([(row.unsqueeze(1) * A).sum(0) for row in products])


def prototype_classifier(features: Tensor) -> tuple[Tensor, Tensor]:
    """Weight and bias that classify by the nearest mean of ``(n_way, n_shot, D)`` features."""
    prototypes = features.mean(1)
    return 2 * prototypes, -prototypes.square().sum(1)
