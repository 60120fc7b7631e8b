"""The convolution with a predicted M: what M spans decides which operation computes it."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from ... import _check
from ..._autocast import is_autocast_enabled
from ...ops import similarity_conv2d
from ...ops.factored_similarity import ConvSettings, can_factor, factored_conv2d
from ...ops.modes import exported
from ...ops.similarity_conv import runs_compiled
from ..plain_calls import called_plainly
from ..predictors import ImageLayers, Window
from .predicted import PredictedSimilarity

__all__ = ["predicted_conv2d"]


def predicted_conv2d(
    prediction: PredictedSimilarity,
    seen: Tensor,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    window: Window,
    groups: int,
    guide: Tensor | None = None,
) -> Tensor:
    """The convolution of ``input`` with the M that is predicted from ``seen`` and the guide."""
    if not _keeps_factors(prediction, input, weight):
        M: Tensor = prediction(seen, window, guide)
        return _weighted(prediction, input, weight, M, bias, window, groups)
    factors = prediction.factors(seen, window, guide)
    settings = ConvSettings(*window, groups)
    if not can_factor(input, weight, factors, settings):
        M = prediction.spread(factors)
        return _weighted(prediction, input, weight, M, bias, window, groups)
    output = factored_conv2d(input, weight, factors, settings)
    return output if bias is None else output + bias.to(output.dtype)[:, None, None]


def _keeps_factors(prediction: PredictedSimilarity, input: Tensor, weight: Tensor) -> bool:
    """Whether the convolution may take the factors of M: nobody sees M itself."""
    if prediction.span.over not in ("channels", "both") or prediction.keeps:
        return False
    if prediction.diagonals != input.shape[1] or isinstance(prediction.network, ImageLayers):
        return False
    # A subclass or a hook may do something else.
    plain = type(prediction) is PredictedSimilarity and called_plainly(prediction)
    return plain and runs_compiled(input, weight)


def _weighted(
    prediction: PredictedSimilarity,
    input: Tensor,
    weight: Tensor,
    M: Tensor,
    bias: Tensor | None,
    window: Window,
    groups: int,
) -> Tensor:
    """The convolution with M.

    If each image has only one factor per channel, these just scale the input. Where the compiled
    operation does not include them in its kernels, a plain convolution follows that scaling.
    """
    if prediction.span.over == "kernels":
        return _over_kernels(prediction, input, weight, M, bias, window, groups)
    S, C = prediction.diagonals, input.shape[1]
    scales = prediction.span.over == "channels" and M.shape[-2:] == (1, 1)
    if scales and (groups == C or not runs_compiled(input, weight, M)):
        factors = M[:, :: M.shape[1] // S]  # the same at all taps
        scale = factors.repeat_interleave(C // S, 1)
        return F.conv2d(input * scale.to(input.dtype), weight, bias, *window, groups)
    return similarity_conv2d(input, weight, M, bias, *window, groups, S)


def _over_kernels(
    prediction: PredictedSimilarity,
    input: Tensor,
    weight: Tensor,
    M: Tensor,
    bias: Tensor | None,
    window: Window,
    groups: int,
) -> Tensor:
    """The convolution with an M for each kernel.

    For one M per image, each image has its own kernels. Otherwise each kernel gets a copy of the
    channels that it sees, in its own group: then M depends on the channel and not on the kernel.
    ONNX fixes the number of groups, so an export for any batch size uses the copies too; so does an
    empty batch, as no convolution has zero groups. What does not fit is refused there.
    """
    of_images = M.shape[-2:] == (1, 1) and M.shape[0] in (1, input.shape[0])
    if of_images and M.shape[0] > 0 and not exported():
        return _kernels_of_images(prediction, input, weight, M, bias, window, groups)
    O, C = weight.shape[:2]
    split = input.unflatten(1, (groups, 1, C))
    copies = split.expand(-1, -1, O // groups, -1, -1, -1).flatten(1, 3)
    return similarity_conv2d(copies, weight, M, bias, *window, O, prediction.diagonals)


def _kernels_of_images(
    prediction: PredictedSimilarity,
    input: Tensor,
    weight: Tensor,
    M: Tensor,
    bias: Tensor | None,
    window: Window,
    groups: int,
) -> Tensor:
    """Each image convolved with its own kernels, in one convolution with one group per image."""
    if not is_autocast_enabled(input.device):
        _check.conv_operands("similarity_conv2d", input, weight, M)
    O, C = weight.shape[:2]
    S = prediction.diagonals // O
    factors = M.reshape(-1, O, S, 1, *weight.shape[2:])
    kernels = (weight.unflatten(1, (S, C // S)) * factors).flatten(2, 3)
    N = kernels.shape[0]
    if N == 1:
        return F.conv2d(input, kernels[0], bias, *window, groups)
    all_biases = None if bias is None else bias.repeat(N)
    # Contiguous: of strides that only one image can have, PyTorch returns wrong gradients.
    one_image, all_kernels = input.contiguous().flatten(0, 1)[None], kernels.flatten(0, 1)
    output = F.conv2d(one_image, all_kernels, all_biases, *window, N * groups)
    return output.reshape(N, O, *output.shape[2:])
