"""Many episodes in one pass through the backbone, each with its own similarities.

Episodes share the kernels W and differ only in M. So their images form one batch, which goes
through all layers as usual. Only layers with a similarity treat the episodes separately: there each
episode has its own MᵀW.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from ...nn.inventory import static_similarities
from .call_with import call_with

__all__ = ["Forward", "ManyEpisodes", "fixed_norm", "replaced"]

Forward = Callable[[Tensor], Tensor]

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


class ManyEpisodes:
    """A backbone for several episodes at once.

    Args:
        backbone: in evaluation mode. The statistics of its BatchNorm are read once, so later
            changes to them have no effect.

    Attributes:
        layers: the convolutions with a static similarity, by name.
        names: of the parameters behind the similarity of each layer: in the backbone, and in the
            parametrization of the layer's weight.
    """

    def __init__(self, backbone: nn.Module) -> None:
        self.backbone = backbone
        self.layers = dict(_layers(backbone))
        self.names = {path: _names(path, layer) for path, layer in self.layers.items()}
        self._norms = dict(_norms(backbone))

    def features(self, tensors: dict[str, Tensor], images: Tensor) -> Tensor:
        """Features ``(B, n, D)`` of images ``(B, n, C, H, W)``.

        Args:
            tensors: the parameters behind the similarities, by name, each ``(B, ...)``.
            images: equally many of every episode.
        """
        forwards = self._norms.copy()
        kernels = vmap(self.kernels)(tensors)
        for layer, own in zip(self.layers.values(), kernels, strict=True):
            forwards[layer] = partial(_convolve, layer, own)
        # On a CPU, a few images are pooled and convolved much faster in this order.
        batch = images.flatten(0, 1).contiguous(memory_format=torch.channels_last)
        with replaced(forwards):
            features: Tensor = self.backbone(batch).flatten(1).unflatten(0, images.shape[:2])
        return features

    @torch.no_grad()
    def works_for(self, tensors: dict[str, Tensor], images: Tensor) -> bool:
        """Whether all similarities belong to convolutions and a batch keeps episodes separate.

        A backbone may do anything with a batch. So this is tried out: two episodes of the same
        images ``(n, C, H, W)`` with different similarities, in one batch and one by one.
        """
        if set(tensors) != {name for names in self.names.values() for name in names}:
            return False
        pairs = {name: torch.stack([tensor, tensor + 0.1]) for name, tensor in tensors.items()}
        try:
            together = self.features(pairs, torch.stack([images, images]))
        except RuntimeError:  # for example, a view that needs another memory layout
            return False
        alone = torch.stack([
            call_with(self.backbone, {name: pair[b] for name, pair in pairs.items()}, images)
            for b in range(2)
        ]).flatten(2)  # fmt: skip
        # Far above rounding, and far below the effect of another episode's similarity.
        return torch.allclose(together, alone, rtol=0, atol=1e-4 * float(alone.abs().max()))

    def kernels(self, tensors: dict[str, Tensor]) -> list[Tensor]:
        """``MᵀW`` of every layer, for one episode."""
        return [self.kernel(path, tensors) for path in self.layers]

    def kernel(self, path: str, tensors: dict[str, Tensor]) -> Tensor:
        """``MᵀW`` of a layer, for one episode."""
        weight = self.layers[path].get_submodule("parametrizations.weight")
        own = {own: tensors[name] for name, own in self.names[path].items()}
        kernel: Tensor = functional_call(weight, own, ())
        return kernel


def _layers(backbone: nn.Module) -> Iterator[tuple[str, nn.Conv2d]]:
    """The convolutions with a static similarity, by name."""
    for path, layer in backbone.named_modules():
        stock = isinstance(layer, _CONVOLUTIONS) and "forward" not in vars(layer)
        if stock and "weight" in static_similarities(layer):
            yield path, cast(nn.Conv2d, layer)  # Conv1d and Conv3d have all that is used here


def _names(path: str, layer: nn.Module) -> dict[str, str]:
    """The parameters behind a layer's M: names in the backbone to names in the layer's weight."""
    weight = layer.get_submodule("parametrizations.weight")
    prefix = ".".join(filter(None, (path, "parametrizations.weight.")))
    own = {id(parameter) for parameter in static_similarities(layer)["weight"].parameters()}
    return {prefix + name: name for name, p in weight.named_parameters() if id(p) in own}


def _norms(backbone: nn.Module) -> Iterator[tuple[nn.Module, Forward]]:
    """Each BatchNorm with running statistics, as a scale and a shift.

    PyTorch's BatchNorm also sums gradients in the backward pass that are not needed here.
    """
    for module in backbone.modules():
        if type(module) not in _NORMS or module.training or "forward" in vars(module):
            continue
        affine = fixed_norm(cast(nn.BatchNorm2d, module))
        if affine is not None:
            yield module, partial(_scale_and_shift, *affine)


@torch.no_grad()
def fixed_norm(norm: nn.BatchNorm2d) -> tuple[Tensor, Tensor] | None:
    """Scale and shift of a BatchNorm with running statistics; None if it has none."""
    if norm.running_mean is None or norm.running_var is None:
        return None
    scale = (norm.running_var + norm.eps).rsqrt()
    scale = scale if norm.weight is None else scale * norm.weight
    shift = -norm.running_mean * scale
    return scale, shift if norm.bias is None else shift + norm.bias


def _scale_and_shift(scale: Tensor, shift: Tensor, input: Tensor) -> Tensor:
    ones = (1,) * (input.dim() - 2)
    return torch.addcmul(shift.view(-1, *ones), input, scale.view(-1, *ones))


def _convolve(layer: nn.Conv2d, kernels: Tensor, input: Tensor) -> Tensor:
    pairs = zip(input.unflatten(0, (len(kernels), -1)), kernels, strict=True)
    return torch.cat([layer._conv_forward(share, kernel, layer.bias) for share, kernel in pairs])


@contextmanager
def replaced(forwards: dict[nn.Module, Forward]) -> Iterator[None]:
    """Within the block, these modules use these functions as their ``forward``."""
    try:
        for module, forward in forwards.items():
            vars(module)["forward"] = forward
        yield
    finally:
        for module in forwards:
            vars(module).pop("forward", None)
