"""Tuning on the support set of an episode, by the paper's stochastic gradient descent.

A linear classifier that starts at zero or at prototypes stays a combination of the support features
X: ``W = Aᵀ X``. So training it needs only the coefficients A ``(n, n_way)`` and the inner products
``X Xᵀ (n, n)``, whatever the number of features, and can tune many episodes at once. In exact
arithmetic the steps equal those of ``torch.optim.SGD``.

Within the steps episodes are the last axis, ``(n, n_way, B)``: the others are short, and loops
along a short axis of memory are slow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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
    "tune_coefficients",
]

Start = Literal["zero", "prototypes", "tuned"]
"""Where a new classifier starts: at zero; at weights ``2 p`` and biases ``−‖p‖²``, which classify
by the nearest prototype p; or at the result of the paper's tuning on the features, from zero."""


@dataclass(frozen=True)
class SupportSGD:
    """The paper's optimiser (Appendix C), shared by all methods that tune.

    Args:
        epochs: passes over the support set.
        batch_size: images per step; None is the whole support set. The default of four is that of
            CloserLook, the source of the paper's optimiser. The order is the same in every episode.
        lr, momentum, dampening, weight_decay: as in ``torch.optim.SGD``.
    """

    epochs: int = 100
    batch_size: int | None = 4
    lr: float = 0.01
    momentum: float = 0.9
    dampening: float = 0.9
    weight_decay: float = 0.001

    def batches(self, images: int) -> Iterator[Tensor]:
        """The support images of each step."""
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
        """The tensors ``start`` after all steps along ``gradients(tensors, rows)``.

        After ``gradients`` returns, its arguments are changed in place.
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


def tune_coefficients(
    X: Tensor, n_way: int, n_shot: int, start: Start, optimisers: Sequence[SupportSGD]
) -> tuple[Tensor, Tensor]:
    """Coefficients A ``(n, n_way, B)`` and biases ``(n_way, B)`` of tuned classifiers ``W = Aᵀ X``.

    Args:
        X: support features ``(B, n, D)``, class by class.
        n_way, n_shot: the number of classes, and of images per class.
        start: ``"zero"`` or ``"prototypes"``; ``"tuned"`` tunes as in the paper first.
        optimisers: the steps to take, one after the other.
    """
    products, labels = products_of(X), one_hot(n_way, n_shot, X).unsqueeze(-1)
    A = torch.zeros_like(labels).repeat(1, 1, len(X))
    bias = A.new_zeros(n_way, len(X))
    if start == "prototypes":
        A = A + 2 / n_shot * labels
        bias = -(A * dots_of(products, A)).sum(0) / 4

    def gradients(tensors: list[Tensor], rows: Tensor) -> list[Tensor]:
        A, bias = tensors
        scores = dots_of(products[rows], A) + bias
        errors = (scores.softmax(1) - labels[rows]) / len(rows)
        return [torch.zeros_like(A).index_copy_(0, rows, errors), errors.sum(0)]

    for optimiser in (*([SupportSGD()] if start == "tuned" else []), *optimisers):
        A, bias = optimiser.descend([A, bias], gradients, X.shape[1])
    return A, bias


def one_hot(n_way: int, n_shot: int, like: Tensor) -> Tensor:
    """The labels of a support set, ``(n_way · n_shot, n_way)``."""
    return F.one_hot(query_labels(n_way, n_shot, like.device), n_way).to(like.dtype)


def products_of(X: Tensor) -> Tensor:
    """``X Xᵀ`` of features ``(B, n, D)``, as ``(n, n, B)``."""
    return (X @ X.mT).permute(1, 2, 0).contiguous()


def dots_of(products: Tensor, A: Tensor) -> Tensor:
    """``X W`` for ``W = Aᵀ X``: products ``(m, n, B)`` with A ``(n, n_way, B)``.

    Row by row, because all at once would take m times the memory of A.
    """
    return torch.stack([(row.unsqueeze(1) * A).sum(0) for row in products])


def prototype_classifier(features: Tensor) -> tuple[Tensor, Tensor]:
    """Weight and bias that classify by the nearest mean of ``(n_way, n_shot, D)`` features."""
    prototypes = features.mean(1)
    return 2 * prototypes, -prototypes.square().sum(1)
