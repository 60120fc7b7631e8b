"""BatchNorm by the statistics of the batch, such that its second derivatives take few passes.

PyTorch's BatchNorm has a second derivative of some thirty passes over the map. Here the statistics
are an operation of their own, whose gradient is ``a + b x`` for each channel. What remains is a
scale and a shift. They come after the 2×2 max pooling that follows, if there is one: the two
commute where the scale is positive, and the pooled map is a quarter of the size.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from .many_episodes import Forward, replaced

__all__ = ["fast_batch_norm"]


def fast_batch_norm(backbone: nn.Module) -> AbstractContextManager[None]:
    """Within, each BatchNorm that takes the statistics of the batch computes them as said above.

    Results, gradients of any order and running statistics are those of PyTorch.
    """
    return replaced(dict(_forwards(backbone)))


def _forwards(backbone: nn.Module) -> Iterator[tuple[nn.Module, Forward]]:
    pools = dict(_pools(backbone))
    for norm in backbone.modules():
        if not (type(norm) is nn.BatchNorm2d and _is_stock(norm) and norm.training):
            continue
        if norm.weight is None or norm.momentum is None:
            continue
        pool = pools.get(norm)
        yield norm, partial(_pooled_norm, norm, pool.forward if pool else None)
        if pool is not None:
            yield pool, _as_it_is


def _pools(backbone: nn.Module) -> Iterator[tuple[nn.BatchNorm2d, nn.MaxPool2d]]:
    """Max pooling that comes right after a BatchNorm."""
    for module in backbone.modules():
        if type(module) is nn.Sequential and _is_stock(module):
            children = list(module.children())
            for norm, pool in pairwise(children):
                if not (isinstance(norm, nn.BatchNorm2d) and isinstance(pool, nn.MaxPool2d)):
                    continue
                if type(pool) is nn.MaxPool2d and _is_stock(pool) and not pool.return_indices:
                    yield norm, pool


def _is_stock(module: nn.Module) -> bool:
    hooks = module._forward_hooks or module._forward_pre_hooks
    return "forward" not in vars(module) and not hooks


def _as_it_is(input: Tensor) -> Tensor:
    return input


def _pooled_norm(norm: nn.BatchNorm2d, pool: Forward | None, input: Tensor) -> Tensor:
    running: tuple[Tensor | None, Tensor | None] = (None, None)
    if norm.track_running_stats and norm.num_batches_tracked is not None:
        norm.num_batches_tracked.add_(1)
        running = (norm.running_mean, norm.running_var)
    mean, inverse = _Statistics.apply(  # type: ignore[no-untyped-call]
        input, *running, norm.momentum, norm.eps
    )
    scale = (norm.weight * inverse).view(-1, 1, 1)
    shift = norm.bias.view(-1, 1, 1) - mean.view(-1, 1, 1) * scale
    if pool is None:
        return torch.addcmul(shift, input, scale)
    if bool((norm.weight.detach() > 0).all()):
        return torch.addcmul(shift, pool(input), scale)
    return pool(torch.addcmul(shift, input, scale))


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
