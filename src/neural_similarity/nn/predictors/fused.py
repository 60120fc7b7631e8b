"""Two layers with BatchNorm in one operation, while they train on batch statistics."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ...ops.sphere_predictor import BatchStatistics, NormalizedLayer, can_fuse, fused_predictor
from ..plain_calls import called_plainly
from .patch_layers import only_weights_matter
from .windows import Window

__all__ = ["in_one_operation"]


def in_one_operation(
    input: Tensor,
    window: Window,
    first: tuple[nn.Module, nn.Module],
    last: tuple[nn.Module, nn.Module],
    start: Tensor | None = None,
) -> Tensor | None:
    """The output of the sphere predictor, or None where it must be computed step by step.

    Each layer is a convolution and its normalisation. The running statistics of the BatchNorms are
    updated as in their own forward pass. A ``start``, one value for each output, is added to the
    output.
    """
    below, above = _normalized(*first), _normalized(*last)
    if below is None or above is None or not can_fuse(input, below, above, window):
        return None
    if start is not None:
        above = above._replace(bias=above.bias + start)
    output, *statistics = fused_predictor(input, below, above, window)
    for (_, norm), measured in zip((first, last), statistics, strict=True):
        _update(norm, measured)
    return output


def _normalized(convolution: nn.Module, norm: Any) -> NormalizedLayer | None:
    if not (only_weights_matter(convolution) and _takes_the_batch(norm)):
        return None
    weight: Any = convolution.weight
    return NormalizedLayer(weight, norm.weight, norm.bias, norm.eps)


def _takes_the_batch(norm: Any) -> bool:
    """Whether this is a plain BatchNorm that normalises by batch statistics.

    Subclasses, such as those that share statistics between processes, do something else; hooks
    expect a call.
    """
    if type(norm) is not nn.BatchNorm2d or norm.weight is None or norm.bias is None:
        return False
    return called_plainly(norm) and (
        norm.training or (norm.running_mean is None and norm.running_var is None)
    )


@torch.no_grad()
def _update(norm: Any, statistics: BatchStatistics) -> None:
    """The running statistics after a batch, as :class:`torch.nn.BatchNorm2d` computes them."""
    if not (norm.training and norm.track_running_stats):
        return
    share = 0.0 if norm.momentum is None else norm.momentum
    if norm.num_batches_tracked is not None:
        norm.num_batches_tracked.add_(1)
        if norm.momentum is None:
            share = 1.0 / float(norm.num_batches_tracked)
    if norm.running_mean is not None and norm.running_var is not None:
        unbiased = statistics.variance * (statistics.values / (statistics.values - 1))
        norm.running_mean.mul_(1 - share).add_(statistics.mean, alpha=share)
        norm.running_var.mul_(1 - share).add_(unbiased, alpha=share)
