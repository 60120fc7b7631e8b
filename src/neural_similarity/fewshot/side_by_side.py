"""Episodes side by side in one pass through the backbone, each with similarities of its own.

Episodes share the kernels W and differ in M alone. So their images make one batch, which all layers
take as it comes, but for those with a similarity: there each episode's images meet its own MᵀW.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from ..nn.inventory import static_similarities

__all__ = ["can_go_side_by_side", "features_side_by_side"]

Forward = Callable[[Tensor], Tensor]

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def features_side_by_side(
    backbone: nn.Module, tensors: dict[str, Tensor], images: Tensor
) -> Tensor:
    """Features ``(B, n, D)`` of images ``(B, n, C, H, W)``.

    Args:
        backbone: in evaluation, where images do not tell of each other.
        tensors: the numbers behind its similarities, by name, each ``(B, ...)``.
        images: as many of every episode.
    """
    # On a CPU, a few images are pooled and convolved much faster in this order.
    batch = images.flatten(0, 1).contiguous(memory_format=torch.channels_last)
    with _replaced(dict([*_convolutions(backbone, tensors), *_norms(backbone)])):
        features: Tensor = backbone(batch).flatten(1).unflatten(0, images.shape[:2])
    return features


@torch.no_grad()
def can_go_side_by_side(backbone: nn.Module, tensors: dict[str, Tensor], images: Tensor) -> bool:
    """Whether these are all similarities of convolutions, and a batch keeps episodes apart.

    A backbone may do anything with a batch, so it is tried: two episodes of the same images
    ``(n, C, H, W)`` and different similarities, beside each alone.
    """
    known = {name for path, layer in _layers(backbone) for name in _numbers(path, layer)}
    if set(tensors) != known:
        return False
    pairs = {name: torch.stack([tensor, tensor + 0.1]) for name, tensor in tensors.items()}
    try:
        together = features_side_by_side(backbone, pairs, torch.stack([images, images]))
    except RuntimeError:  # of a view, say, that wants another order of memory
        return False
    alone = torch.stack([
        functional_call(backbone, {name: pair[b] for name, pair in pairs.items()}, (images,))
        for b in range(2)
    ]).flatten(2)  # fmt: skip
    # Far more than rounding, and far less than another episode's similarity makes of it.
    return torch.allclose(together, alone, rtol=0, atol=1e-4 * float(alone.abs().max()))


@contextmanager
def _replaced(forwards: dict[nn.Module, Forward]) -> Iterator[None]:
    """Within, these modules compute something else."""
    try:
        for module, forward in forwards.items():
            vars(module)["forward"] = forward
        yield
    finally:
        for module in forwards:
            vars(module).pop("forward", None)


def _convolutions(
    backbone: nn.Module, tensors: dict[str, Tensor]
) -> Iterator[tuple[nn.Module, Forward]]:
    """Convolutions by ``MᵀW`` of every episode, ``(B, O, C/G, *taps)``."""
    for path, layer in _layers(backbone):
        weight = layer.get_submodule("parametrizations.weight")
        numbers = {own: tensors[name] for name, own in _numbers(path, layer).items()}
        kernels = vmap(partial(functional_call, weight, args=()))(numbers)
        yield layer, partial(_convolve, layer, kernels)


def _convolve(layer: nn.Conv2d, kernels: Tensor, input: Tensor) -> Tensor:
    pairs = zip(input.unflatten(0, (len(kernels), -1)), kernels, strict=True)
    return torch.cat([layer._conv_forward(share, kernel, layer.bias) for share, kernel in pairs])


@torch.no_grad()
def _norms(backbone: nn.Module) -> list[tuple[nn.Module, Forward]]:
    """BatchNorm that uses what it remembers, as the scale and shift that it is.

    PyTorch's own, in the backward pass, also sums up gradients that nobody asked for.
    """
    found: list[tuple[nn.Module, Forward]] = []
    for norm in backbone.modules():
        if type(norm) not in _NORMS or norm.training or "forward" in vars(norm):
            continue
        norm = cast(nn.BatchNorm2d, norm)
        if norm.running_mean is not None and norm.running_var is not None:
            scale = (norm.running_var + norm.eps).rsqrt()
            scale = scale if norm.weight is None else scale * norm.weight
            shift = -norm.running_mean * scale
            shift = shift if norm.bias is None else shift + norm.bias
            found.append((norm, partial(_scale_and_shift, scale, shift)))
    return found


def _scale_and_shift(scale: Tensor, shift: Tensor, input: Tensor) -> Tensor:
    ones = (1,) * (input.dim() - 2)
    return torch.addcmul(shift.view(-1, *ones), input, scale.view(-1, *ones))


def _layers(backbone: nn.Module) -> Iterator[tuple[str, nn.Conv2d]]:
    """The convolutions with a static similarity, by name."""
    for path, layer in backbone.named_modules():
        stock = isinstance(layer, _CONVOLUTIONS) and "forward" not in vars(layer)
        if stock and "weight" in static_similarities(layer):
            yield path, cast(nn.Conv2d, layer)  # the others have all that is used of it


def _numbers(path: str, layer: nn.Module) -> dict[str, str]:
    """Names of the numbers behind a layer's M: to the backbone, and to the layer's weight."""
    weight = layer.get_submodule("parametrizations.weight")
    prefix = ".".join(filter(None, (path, "parametrizations.weight.")))
    own = {id(number) for number in static_similarities(layer)["weight"].parameters()}
    return {prefix + name: name for name, p in weight.named_parameters() if id(p) in own}
