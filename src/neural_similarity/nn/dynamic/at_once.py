"""A dynamic layer in one operation, where only the values of its output matter."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from ... import _check
from ...ops.folded_predictor import FoldedLayer, folded_dynamic_conv2d
from ..plain_calls import called_plainly
from ..predictors import TwoLayers, Window
from .predicted import PredictedSimilarity

__all__ = ["conv2d_at_once"]

# The shapes and settings that a layer was last called with, which need not be checked again.
_CHECKED: WeakKeyDictionary[nn.Module, tuple[Any, ...]] = WeakKeyDictionary()


def conv2d_at_once(
    layer: nn.Conv2d, prediction: PredictedSimilarity, input: Tensor, window: Window
) -> Tensor | None:
    """The output of a layer with the paper's predictor and a diagonal; None for all others.

    Also None if gradients are needed, if the code is traced, or if a part of it has hooks.
    """
    if torch.is_grad_enabled() or torch.compiler.is_compiling():
        return None
    network = prediction._modules["network"]
    if type(prediction) is not PredictedSimilarity or type(network) is not TwoLayers:
        return None  # a subclass may do something else
    if not (prediction.adds_a_diagonal and called_plainly(prediction, network)):
        return None
    weight, start = layer._parameters.get("weight"), prediction._buffers.get("start")
    if weight is None or start is None or "bias" not in layer._parameters or prediction.keeps:
        return None  # parametrized, or M is kept
    bias = layer._parameters["bias"]
    operands = (input, weight, start) if bias is None else (input, weight, start, bias)
    if (folded := network.folded(*operands)) is None:
        return None
    shapes = [tensor.shape for tensor in (*operands, *folded[0][:2], *folded[1][:2])]
    settings = (shapes, window, layer.groups)
    if _CHECKED.get(layer) != settings:
        _check.conv_output_shape(type(layer).__name__, input, weight, bias, *window, layer.groups)
        if not _fit(input, weight, start, *folded):
            return None
        _CHECKED[layer] = settings
    return folded_dynamic_conv2d(input, weight, bias, start, *folded, window, layer.groups)


def _fit(
    input: Tensor, weight: Tensor, start: Tensor, first: FoldedLayer, last: FoldedLayer
) -> bool:
    """Whether the predictor fits this layer; if not, the separate steps explain why."""
    hidden = first.weight.shape[0]
    return (
        first.weight.shape == (hidden, input.shape[1], *weight.shape[2:])
        and last.weight.shape[:2] == (start.shape[0], hidden)
        and all(size % 2 == 1 for size in last.weight.shape[2:])
        and start.shape[0] == weight.shape[2] * weight.shape[3]
    )
