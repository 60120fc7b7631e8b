r"""Multinomial logistic regression with an L2 penalty, for many support sets and problems at once.

Every problem minimises the convex function

.. math:: f(V) = \sum_i w_i \, \mathrm{CE}(V^\top x_i, y_i) + \frac12 \sum_j \rho_j \|V_j\|^2

by conjugate gradients. A direction's scores are computed once, so its line search needs no further
matrix product. In the basis of :func:`principal_basis` the Hessian is almost diagonal, and its
diagonal is the preconditioner.

Shapes: E support sets share labels. Each has n images, r coordinates, P problems, which differ in
weights and penalties, and K classes: ``V (E, r, P, K)``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["minimise_cross_entropy", "principal_basis"]

_LEAST = 1e-10  # share of the largest eigenvalue, below which a direction is only rounding
_RESTART = 15  # steps after which the preconditioner is recomputed
_LINE_STEPS = 8
_ROUGHLY = 0.1  # share of the initial slope at which a step is good enough
_LONGEST = 1e3  # where f is flat, Newton's method would overflow


def principal_basis(features: Tensor) -> Tensor:
    """An orthonormal basis ``(..., D, r)`` of the span of features ``(..., n, D)``.

    In it the coordinates of the features are uncorrelated, and r is at most n and D: a classifier
    with an L2 penalty is a combination of the features, so nothing is lost. Directions in which the
    features are zero have a zero vector in the basis.

    >>> basis = principal_basis(torch.eye(3, 1000, dtype=torch.float64))
    >>> basis.shape, bool(torch.allclose(basis.mT @ basis, torch.eye(3, dtype=basis.dtype)))
    (torch.Size([1000, 3]), True)
    """
    wide = features.shape[-2] <= features.shape[-1]
    products = features @ features.mT if wide else features.mT @ features
    values: Tensor
    vectors: Tensor
    values, vectors = torch.linalg.eigh(products)
    used = values > _LEAST * values[..., -1:].clamp(min=torch.finfo(values.dtype).tiny)
    vectors = vectors * used.unsqueeze(-2)
    if not wide:
        return vectors
    lengths = torch.where(used, values, 1).sqrt()
    basis: Tensor = features.mT @ (vectors / lengths.unsqueeze(-2))
    return basis


def minimise_cross_entropy(
    X: Tensor,
    labels: Tensor,
    weights: Tensor,
    penalties: Tensor,
    start: Tensor,
    tolerance: float = 5e-6,
    steps: int = 500,
) -> Tensor:
    """The V ``(E, r, P, K)`` that minimises cross-entropy plus penalty.

    Args:
        X: ``(E, n, r)``, coordinates of the images.
        labels: ``(n,)``.
        weights: ``(n, P)``; zero leaves an image out.
        penalties: ρ of every coordinate and problem, in a shape that broadcasts to ``(E, r, P)``;
            above zero, except for at most one coordinate, a bias.
        start: the initial V.
        tolerance: the gradient norm to stop at, as a share of that at V = 0, in the metric of the
            preconditioner.
        steps: the maximum number of steps.
    """
    classes = start.shape[-1]
    targets = torch.eye(classes, dtype=X.dtype, device=X.device)[labels].unsqueeze(1)
    weight, penalty = weights.unsqueeze(-1), penalties.expand(start.shape[:-1]).unsqueeze(-1)
    # p (1 − p) of a class is 1 / K along the directions that matter, if all are equally likely.
    curvature = torch.einsum("enr,np->erp", X.square(), weights).unsqueeze(-1) / classes + penalty
    curvature = curvature.clamp(min=torch.finfo(X.dtype).tiny)

    def products(A: Tensor, B: Tensor) -> Tensor:
        result: Tensor = (A @ B.flatten(2)).unflatten(2, B.shape[2:])
        return result

    zero = products(X.mT, weight * (1 / classes - targets).expand(len(X), -1, weights.shape[1], -1))
    enough = tolerance**2 * _dot(zero, zero / curvature)
    V, scores = start, products(X, start)
    likely = scores.softmax(-1)
    direction = before = length_before = torch.zeros_like(V[:1, :1, :1, :1])
    # A solved problem is left alone: its result must not depend on the others.
    solved = torch.zeros_like(enough, dtype=torch.bool)
    for step in range(steps):
        gradient = products(X.mT, (likely - targets) * weight) + penalty * V
        again = step % _RESTART == 0
        if again and step:
            now = products(X.mT.square(), weight * likely * (1 - likely)) + penalty
            curvature = (now + now.mean(-1, keepdim=True)) / 2
        downhill = gradient / curvature
        length = _dot(gradient, downhill)
        solved = solved | (length <= enough)
        if bool(solved.all()):
            break
        if not again:
            # Polak–Ribière; never an ascent direction.
            share = (length - _dot(before, downhill)).clamp(min=0) / length_before
            direction = share * direction - downhill
            direction = torch.where(_dot(direction, gradient) < 0, direction, -downhill)
        else:
            direction = -downhill
        before, length_before = gradient, length.clamp(min=torch.finfo(X.dtype).tiny)
        bent, change = penalty * direction, products(X, direction)
        line = _Line(
            scores, change, weight, _dot(bent, V) - _dot(weight * targets, change),
            _dot(bent, direction),
        )  # fmt: skip
        size, new_likely = line.minimum(likely)
        size, likely = torch.where(solved, 0, size), torch.where(solved, likely, new_likely)
        V, scores = V + size * direction, scores + size * change
    return V


def _dot(a: Tensor, b: Tensor) -> Tensor:
    """A number for every problem, ``(E, 1, P, 1)``."""
    return (a * b).sum((1, 3), keepdim=True)


@dataclass(frozen=True, eq=False)
class _Line:
    """f along a direction, as a function of the step size ``(E, 1, P, 1)``; it is convex.

    Args:
        scores, change: of the images, at step size zero, and their change with the step size.
        weight: of the images.
        slope, bend: the derivative at zero without the softmax term, and how fast it grows.
    """

    scores: Tensor
    change: Tensor
    weight: Tensor
    slope: Tensor
    bend: Tensor

    def derivatives(self, size: Tensor, likely: Tensor) -> tuple[Tensor, Tensor]:
        """First and second, where the classes have these probabilities."""
        terms = likely * self.change
        mean = terms.sum(-1, keepdim=True)
        variance = (terms * self.change).sum(-1, keepdim=True) - mean.square()
        first = (self.weight * mean).sum(1, keepdim=True) + self.slope + size * self.bend
        second = (self.weight * variance).sum(1, keepdim=True).clamp(min=0) + self.bend
        return first, second.clamp(min=torch.finfo(size.dtype).tiny)

    def minimum(self, likely: Tensor) -> tuple[Tensor, Tensor]:
        """The approximately best step size by Newton's method, and the probabilities there.

        ``likely`` are the probabilities at size zero. Up to ``low`` the function decreases, so a
        step of that size is never too long.
        """
        size = torch.zeros_like(self.bend)
        first, second = self.derivatives(size, likely)
        enough = _ROUGHLY * first.abs()
        low, high = size, torch.full_like(size, torch.inf)
        for _ in range(_LINE_STEPS):
            better = torch.minimum(size - first / second, _LONGEST * (1 + low))
            # Newton's method may leave the interval; then use the midpoint.
            better = torch.where((low <= better) & (better < high), better, (low + high) / 2)
            size = torch.where(first.abs() <= enough, size, better)
            likely = (self.scores + size * self.change).softmax(-1)
            first, second = self.derivatives(size, likely)
            if bool((first.abs() <= enough).all()):
                return size, likely
            falls = first <= 0
            low, high = torch.where(falls, size, low), torch.where(falls, high, size)
        size = torch.where(first.abs() <= enough, size, low)
        return size, (self.scores + size * self.change).softmax(-1)
