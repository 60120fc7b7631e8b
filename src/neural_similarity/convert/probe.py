"""Run a layer or a model for inspection, and leave it unchanged."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ..nn.family import PixelAdaptiveConv2d
from ..nn.layouts import CONVOLUTIONS, kernel_layouts
from ..nn.positions import StaticPositions

__all__ = ["evaluation", "probe_output"]


@contextmanager
def evaluation(model: nn.Module) -> Iterator[None]:
    """The model in evaluation mode; afterwards every submodule returns to its own mode.

    ``model.train(mode)`` would not do: it also sets those submodules to training that were frozen
    in evaluation mode, such as a BatchNorm that keeps its statistics.

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2).eval())
        >>> with evaluation(model):
        ...     [layer.training for layer in model]
        [False, False]
        >>> [layer.training for layer in model]
        [True, False]
    """
    training = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in training:  # parents first: train reaches the modules inside
            if type(module).train is not nn.Module.train:
                module.train(mode)  # it may do more than set a flag, such as merging weights
        for module, mode in training:
            module.training = mode


def probe_output(module: nn.Module) -> Tensor:
    """The layer's output on fixed random input, without hooks or dropout."""
    weight_name, _ = next(iter(kernel_layouts(module, None, "probe")))
    generator = torch.Generator("cpu").manual_seed(0)
    input = torch.randn(
        _input_shape(module), generator=generator, dtype=torch.float64, device="cpu"
    )
    with evaluation(module), torch.no_grad():
        # That of the class: one in the instance, set by a hook, may hold another module.
        forward: Any = type(module).forward
        inputs = [input.to(getattr(module, weight_name))]
        if isinstance(module, PixelAdaptiveConv2d):  # a constant guide, so that every tap counts
            inputs.append(torch.zeros_like(inputs[0]))
        output = forward(module, *inputs)
    while not isinstance(output, Tensor):
        output = output[0]
    return output


def _input_shape(module: nn.Module) -> tuple[int, ...]:
    if isinstance(module, CONVOLUTIONS):
        over = getattr(module, "similarity", None)
        if isinstance(over, StaticPositions):  # learned for maps of one size
            return (2, module.in_channels, *over.size)
        padding = module.padding if not isinstance(module.padding, str) else module.kernel_size
        # Large enough for the kernel to move, and for reflected or circular padding.
        sides = (
            d * (k - 1) + 1 + s + p
            for k, s, p, d in zip(
                module.kernel_size, module.stride, padding, module.dilation, strict=True
            )
        )
        return (2, module.in_channels, *sides)
    if isinstance(module, nn.Linear):
        return (4, module.in_features)
    if isinstance(module, nn.RNNBase):
        return (3, 2, module.input_size)
    assert isinstance(module, nn.RNNCellBase)
    return (2, module.input_size)
