"""How much a network computes: multiply-adds, layer by layer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils.parametrize import ParametrizationList
from torch.utils.flop_counter import FlopCounterMode

from ..nn.dynamic import (
    DynamicConv1d,
    DynamicConv2d,
    DynamicLayer,
    DynamicLinear,
    DynamicLSTMCell,
    PredictedSimilarity,
)
from ..nn.inventory import layer_similarities
from ..nn.positions import PositionSimilarity
from ..nn.predictors import PairNetwork
from .probe import evaluation

__all__ = ["multiply_adds"]


def multiply_adds(model: nn.Module, example: Tensor) -> dict[str, int]:
    r"""Multiply-adds of one forward pass, by layer.

    For the cost per image, pass two images and halve the counts: the M of a single image is merged
    into the kernel where that is cheaper, and then not counted.

    With N samples, C input and O output channels in G groups, K taps, L output positions:

    ======================  =================================================================
    what                    multiply-adds
    ======================  =================================================================
    convolution             N·L·O·(C/G)·K
    transposed convolution  N·L·C·(O/G)·K, with L input positions
    linear                  N·I·O, with I input features
    dynamic convolution     the convolution's, and N·L·C·K (diagonal) or N·L·C·K² (matrix) for M;
                            for one M per image over channels nothing more: it scales the map.
                            Over kernels N·L·O·(C/G)·K for M, and nothing for one M per image: it
                            scales the kernels
    dynamic linear          the linear layer's, and N·I (diagonal) or N·I·B (matrix) for an M
                            that spans B features
    predictor               its two layers; for a sphere also the patch norms: two thin windows,
                            of kh and of kw taps, over one channel. For pairs of D channels its
                            layer, and N·L·K·D
    attention               its convolutions, and both products with a matrix of all positions
    ======================  =================================================================

    A dynamic layer's count includes its predictor's. A static similarity changes the kernel once
    for all images and is not counted, merged or not. Normalisation, activation, pooling and masks
    over whole maps only pass over the map, and are not counted.

    Returns:
        Layers in the order of the model, without those that count zero. What a container
        computes between its layers counts under its own name.

    Example:
        >>> model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 4, 1))
        >>> multiply_adds(model, torch.zeros(1, 3, 16, 16))
        {'0': 55296, '2': 8192}
    """
    counter = FlopCounterMode(display=False)
    meter, layers = _Meter(counter), dict(_layers("", model))
    with ExitStack() as stack:
        for name, module in layers.items():
            stack.enter_context(module.register_forward_pre_hook(meter.begin))
            stack.enter_context(module.register_forward_hook(meter.end_of(name)))
        for context in (evaluation(model), _open_boxes(), torch.no_grad(), counter):
            stack.enter_context(context)
        model(example)
    return {name: meter.spent[name] for name in layers if meter.spent[name]}


class _Meter:
    """Charges each layer for what is computed while it runs, minus what layers inside it compute.

    PyTorch's counter counts operations of matrix products and convolutions, two per multiply-add.
    """

    def __init__(self, counter: FlopCounterMode) -> None:
        self.counter = counter
        self.spent: Counter[str] = Counter()
        self.running: list[list[int]] = []  # the count at the start, and that of layers inside

    def begin(self, *_: Any) -> None:
        self.running.append([self.counter.get_total_flops(), 0])

    def end_of(self, name: str) -> Any:
        def end(module: nn.Module, _: Any, output: Any) -> None:
            start, inside = self.running.pop()
            total = self.counter.get_total_flops() - start
            if not isinstance(module, ParametrizationList):
                self.spent[name] += (total - inside) // 2 + _unseen(module, output)
            if self.running:
                self.running[-1][1] += total

        return end


def _layers(
    name: str, module: nn.Module, seen: set[nn.Module] | None = None
) -> Iterator[tuple[str, nn.Module]]:
    """All modules except those inside a layer with a similarity: such a layer counts as one."""
    seen = set() if seen is None else seen
    if module in seen:
        return
    seen.add(module)
    yield name, module
    if not isinstance(module, DynamicLayer | PositionSimilarity | ParametrizationList):
        for child, inner in module.named_children():
            yield from _layers(f"{name}.{child}" if name else child, inner, seen)


def _unseen(module: nn.Module, output: Any) -> int:
    """Products that the counter does not see: by a predicted diagonal, and in pairs."""
    rows: int
    if isinstance(module, DynamicConv1d | DynamicConv2d):
        networks = [predicted.network for predicted in module.predictions().values()]
        positions: int = output.numel() // module.out_channels
        pairs = [network for network in networks if isinstance(network, PairNetwork)]
        return sum(positions * prod(n.kernel_size) * n.width for n in pairs)
    if isinstance(module, DynamicLinear):
        rows, features = output.numel() // module.out_features, {"predictor": module.in_features}
    elif isinstance(module, DynamicLSTMCell):
        rows = output[0].numel() // module.hidden_size
        features = {"predictor_ih": module.input_size, "predictor_hh": module.hidden_size}
    else:
        return 0
    return rows * sum(
        features[name]
        for name, predicted in layer_similarities(module).items()
        if isinstance(predicted, PredictedSimilarity) and predicted.is_diagonal
    )


@contextmanager
def _open_boxes() -> Iterator[None]:
    """Run attention and recurrent layers unfused: the counter does not see fused operations."""
    onednn: Any = torch.backends.mkldnn
    before = onednn.enabled, torch.backends.mha.get_fastpath_enabled()
    onednn.enabled = False
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        onednn.enabled = before[0]
        torch.backends.mha.set_fastpath_enabled(before[1])
