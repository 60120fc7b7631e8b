"""BatchNorm with batch statistics, whose second derivatives take few passes.

The second derivative of PyTorch's BatchNorm takes about thirty passes over the map. Here the
statistics are a separate operation, whose gradient is ``a + b x`` for each channel. What remains is
a scale and a shift. They come after the 2×2 max pooling that follows, if there is one: the two
commute where the scale is positive, and the pooled map is a quarter of the size.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import partial
from itertools import pairwise
from typing import Any, TypeGuard, cast

import torch
from torch import Tensor, nn

from ...nn.plain_calls import called_plainly
from .many_episodes import Forward, replaced

__all__ = ["fast_batch_norm"]


def fast_batch_norm(backbone: nn.Module) -> AbstractContextManager[None]:
    """Within the block, each BatchNorm that uses batch statistics computes them as above.

    Results, gradients of any order and running statistics are those of PyTorch.
    """
    return replaced(dict(_forwards(backbone)))


def _forwards(backbone: nn.Module) -> Iterator[tuple[nn.Module, Forward]]:
    for module in backbone.modules():
        if type(module) is nn.Sequential and called_plainly(module):
            pairs = set(_pairs(module))
            if pairs:
                yield module, partial(_in_order, module, pairs)
        if _can_be_fast(module):
            yield module, partial(_norm, module, None)


def _pairs(sequence: nn.Sequential) -> Iterator[tuple[nn.Module, nn.Module]]:
    """Each BatchNorm with the max pooling right after it."""
    for norm, pool in pairwise(sequence):
        pools = type(pool) is nn.MaxPool2d and not pool.return_indices and called_plainly(pool)
        if pools and _can_be_fast(norm):
            yield norm, pool


def _can_be_fast(norm: nn.Module) -> TypeGuard[nn.BatchNorm2d]:
    if not (type(norm) is nn.BatchNorm2d and called_plainly(norm) and norm.training):
        return False
    return norm.weight is not None and norm.momentum is not None


def _in_order(
    sequence: nn.Sequential, pairs: set[tuple[nn.Module, nn.Module]], input: Tensor
) -> Tensor:
    """The forward pass of a sequence, in which the pairs are computed together."""
    modules = [*sequence, None]
    steps = iter(pairwise(modules))
    for module, following in steps:
        if (module, following) in pairs:
            input = _norm(cast(nn.BatchNorm2d, module), cast(nn.MaxPool2d, following), input)
            next(steps)
        else:
            input = cast(nn.Module, module)(input)
    return input


def _norm(norm: nn.BatchNorm2d, pool: nn.MaxPool2d | None, input: Tensor) -> Tensor:
    """BatchNorm, and the pooling that follows it."""
    after = _as_it_is if pool is None else pool
    if not _takes(norm, input):
        return after(nn.BatchNorm2d.forward(norm, input))
    running: tuple[Tensor | None, Tensor | None] = (None, None)
    if norm.track_running_stats and norm.num_batches_tracked is not None:
        norm.num_batches_tracked.add_(1)
        running = (norm.running_mean, norm.running_var)
    mean, inverse = _Statistics.apply(  # type: ignore[no-untyped-call]
        input, *running, norm.momentum, norm.eps
    )
    scale = (norm.weight * inverse).view(-1, 1, 1)
    shift = norm.bias.view(-1, 1, 1) - mean.view(-1, 1, 1) * scale
    if bool((norm.weight.detach() > 0).all()):
        return torch.addcmul(shift, after(input), scale)
    return after(torch.addcmul(shift, input, scale))


def _takes(norm: nn.BatchNorm2d, input: Tensor) -> bool:
    """Whether the input is the usual kind; PyTorch converts or refuses others."""
    return input.dim() == 4 and input.dtype == norm.weight.dtype and input[:, :1].numel() > 1


def _as_it_is(input: Tensor) -> Tensor:
    return input


class _Statistics(torch.autograd.Function):
    """Mean and inverse standard deviation of every channel; running statistics are updated."""

    @staticmethod
    def forward(
        ctx: Any, input: Tensor, mean: Tensor | None, variance: Tensor | None, momentum: float,
        eps: float,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        _, *statistics = torch.native_batch_norm(
            input, None, None, mean, variance, True, momentum, eps
        )
        ctx.save_for_backward(input, *statistics)
        return statistics[0], statistics[1]

    @staticmethod
    def backward(ctx: Any, of_mean: Tensor, of_inverse: Tensor) -> tuple[Tensor | None, ...]:
        # d inverse = -inverse³ / 2 · d variance, and d variance = 2 (x - mean) / n · dx
        input, mean, inverse = ctx.saved_tensors
        count = input.numel() // input.shape[1]
        b = -of_inverse * inverse**3 / count
        a = of_mean / count - b * mean
        gradient = torch.addcmul(a.view(-1, 1, 1), input, b.view(-1, 1, 1))
        return gradient, None, None, None, None
