"""Episodes tuned by compiled code, for backbones that are a plain chain of convolutions.

CNN-4 is such a chain: convolutions, each with BatchNorm, ReLU and perhaps 2×2 max pooling. A tuning
step then needs neither autograd nor a map in memory: compiled code takes every image forward and
backward through all layers (:mod:`neural_similarity.ops.episode_chain`). Layers below the first
tuned one are computed once. Other backbones, and machines without a compiler, use the general path
of :mod:`.many_episodes`, whose results are the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import cast

import torch
from torch import Tensor, nn
from torch.func import vmap

from ...nn.inventory import static_similarities
from ...ops.episode_chain import ChainLayers, can_run_chain, chain_features, chain_gradients
from .many_episodes import ManyEpisodes, fixed_norm

__all__ = ["Chain", "find_chain"]

_NO_EFFECT = (nn.Identity, nn.Dropout, nn.Dropout2d, nn.Flatten)  # on features, in evaluation mode
_STEPS = (nn.Conv2d, nn.BatchNorm2d, nn.MaxPool2d, nn.ReLU)


@dataclass(frozen=True, eq=False)
class _Layer:
    """A convolution with what follows it: ``relu(pool(conv(x) · scale + shift))``."""

    path: str
    """Its name if it is tuned, else empty."""
    weight: Tensor
    """W if M is one diagonal for the layer or is not tuned; empty otherwise."""
    factors: str
    """The name of this diagonal; empty if there is none."""
    scale: Tensor
    shift: Tensor
    padding: tuple[int, int]
    pool: bool


class Chain:
    """A backbone that is a chain, for several episodes at once."""

    def __init__(
        self, episodes: ManyEpisodes, below: list[nn.Module], layers: list[_Layer]
    ) -> None:
        self._episodes, self._below, self._layers = episodes, below, layers
        self._own = {
            path: list(episodes.names[path])
            for path in (layer.path for layer in layers if not layer.factors)
            if path
        }

    def first_inputs(self, images: Tensor) -> Tensor:
        """The input ``(B, n, C, H, W)`` of the first tuned layer, from images of this shape."""
        maps: Tensor = images.flatten(0, 1)
        with torch.no_grad():
            for module in self._below:
                maps = module(maps)
        maps = maps.unflatten(0, images.shape[:2]).movedim(2, -1)
        return maps.contiguous().movedim(-1, 2)  # channels-last, once for all steps

    @torch.no_grad()
    def features(self, tensors: dict[str, Tensor], inputs: Tensor) -> Tensor:
        """Features ``(B, n, D)``; see :meth:`ManyEpisodes.features`."""
        return chain_features(inputs, self._operands(tensors, self._kernels(tensors), len(inputs)))

    def gradients(
        self, tensors: dict[str, Tensor], classifier: Sequence[Tensor], inputs: Tensor,
        labels: Tensor, rows: Tensor,
    ) -> tuple[dict[str, Tensor], list[Tensor]]:  # fmt: skip
        """Gradients of the mean cross-entropy of some images, for all tensors and the classifier.

        Args:
            tensors: the parameters behind the similarities, by name, each ``(B, ...)``.
            classifier: weight ``(B, n_way, D)`` and bias ``(B, n_way)``.
            inputs: all images, as :meth:`first_inputs` returns them.
            labels: of all images.
            rows: which images.
        """
        leaves = {
            name: tensors[name].detach().requires_grad_()
            for names in self._own.values()
            for name in names
        }
        with torch.enable_grad():
            kernels = self._kernels(leaves)
        operands = self._operands(tensors, kernels, len(inputs))
        with torch.no_grad():
            weight, bias = classifier
            *of_layers, of_weight, of_bias = chain_gradients(
                inputs, operands, weight, bias, labels, rows
            )
        gradients, of_kernels = {}, []
        for layer, gradient in zip(self._layers, of_layers, strict=True):
            if layer.factors:
                gradients[layer.factors] = gradient
            elif layer.path:
                of_kernels.append(gradient)
        if leaves:
            slopes = torch.autograd.grad(
                list(kernels.values()), list(leaves.values()), of_kernels, materialize_grads=True
            )
            gradients |= zip(leaves, slopes, strict=True)
        return gradients, [of_weight, of_bias]

    def _kernels(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """``MᵀW (B, O, C, kh, kw)`` of every layer whose M is not a single diagonal."""
        return {
            path: vmap(lambda own, path=path: self._episodes.kernel(path, own))(
                {name: tensors[name] for name in names}
            )
            for path, names in self._own.items()
        }

    def _operands(
        self, tensors: dict[str, Tensor], kernels: dict[str, Tensor], count: int
    ) -> ChainLayers:
        weights, factors = [], []
        for layer in self._layers:
            weights.append(kernels.get(layer.path, layer.weight))
            if layer.factors:
                factors.append(tensors[layer.factors])
            elif layer.path:
                factors.append(layer.scale.new_empty(0, 0))
            else:
                factors.append(layer.scale.new_ones(count, layer.weight[0, 0, 0].numel()))
        return ChainLayers(
            weights, factors, [layer.scale for layer in self._layers],
            [layer.shift for layer in self._layers],
            [side for layer in self._layers for side in layer.padding],
            [int(layer.pool) for layer in self._layers],
        )  # fmt: skip


@torch.no_grad()
def find_chain(episodes: ManyEpisodes, tensors: dict[str, Tensor], images: Tensor) -> Chain | None:
    """The backbone as a chain, if it is one and there is compiled code for it.

    Args:
        episodes: the backbone.
        tensors: the tuned parameters, by name.
        images: a few ``(n, C, H, W)``, to try it on.
    """
    if not can_run_chain(images):
        return None
    modules = _in_a_row(episodes.backbone, images)
    paths = {layer: path for path, layer in episodes.layers.items()}
    first = next((i for i, module in enumerate(modules) if module in paths), None)
    if first is None or len(set(modules)) < len(modules):  # a layer may be used twice
        return None
    layers = list(_grouped(modules[first:], paths))
    tuned = {name for layer in layers if layer for name in episodes.names.get(layer.path, ())}
    if any(layer is None for layer in layers) or tuned != set(tensors):
        return None
    chain = Chain(episodes, modules[:first], [layer for layer in layers if layer])
    pairs = {name: torch.stack([tensor, tensor + 0.1]) for name, tensor in tensors.items()}
    both = torch.stack([images, images])
    ours, theirs = chain.features(pairs, chain.first_inputs(both)), episodes.features(pairs, both)
    # As in works_for: a backbone may do something between its modules.
    close = 1e-4 * float(theirs.abs().max())
    same = ours.shape == theirs.shape and torch.allclose(ours, theirs, rtol=0, atol=close)
    return chain if same else None


def _in_a_row(backbone: nn.Module, images: Tensor) -> list[nn.Module]:
    """The modules that images pass through, if each takes the output of the one before."""
    calls: list[tuple[nn.Module, object, object]] = []

    def record(module: nn.Module, inputs: tuple[object, ...], output: object) -> None:
        calls.append((module, inputs[0] if inputs else None, output))  # None: given as a keyword

    handles = [
        module.register_forward_hook(record)
        for module in backbone.modules()
        if isinstance(module, _STEPS + _NO_EFFECT)
    ]
    try:
        backbone(images)
    finally:
        for handle in handles:
            handle.remove()
    while calls and isinstance(calls[-1][0], _NO_EFFECT):  # these may get a flat map
        calls.pop()
    for (_, _, before), (_, after, _) in pairwise(calls):
        if before is not after:
            return []
    return [module for module, _, _ in calls if not isinstance(module, _NO_EFFECT)]


def _grouped(modules: list[nn.Module], paths: dict[nn.Conv2d, str]) -> Iterator[_Layer | None]:
    """The layers of a chain; None for anything else."""
    rest = modules
    while rest:
        conv, *rest = rest
        norm, pools = None, []
        if rest and isinstance(rest[0], nn.BatchNorm2d):
            norm, *rest = rest
        if rest and isinstance(rest[0], nn.MaxPool2d):
            pools = [rest.pop(0)]
        relu = bool(rest) and isinstance(rest.pop(0), nn.ReLU)
        if rest and not pools and isinstance(rest[0], nn.MaxPool2d):
            pools = [rest.pop(0)]
        plain = isinstance(conv, nn.Conv2d) and _is_plain(conv)
        fits = relu and plain and all(map(_halves, pools))
        pair = cast(tuple[nn.Conv2d, nn.BatchNorm2d | None], (conv, norm))
        yield _layer(*pair, bool(pools), paths) if fits else None


def _layer(
    conv: nn.Conv2d, norm: nn.BatchNorm2d | None, pool: bool, paths: dict[nn.Conv2d, str]
) -> _Layer | None:
    one = conv.weight.new_ones(conv.out_channels)
    scale, shift = one, torch.zeros_like(one)
    if norm is not None:
        affine = fixed_norm(norm)
        if affine is None or norm.training:
            return None
        scale, shift = affine
    if conv.bias is not None:
        shift = shift + conv.bias.detach() * scale
    path, factors, weight = paths.get(conv, ""), "", conv.weight.detach()
    if path:
        factors, weight = _diagonal(path, conv)
    height, width = (int(side) for side in conv.padding)
    return _Layer(path, weight.unsqueeze(0), factors, scale, shift, (height, width), pool)


def _diagonal(path: str, conv: nn.Conv2d) -> tuple[str, Tensor]:
    """The name of the one diagonal that all kernels of a layer share, and W; otherwise empty."""
    similarity = static_similarities(conv)["weight"]
    weight = conv.get_submodule("parametrizations.weight")
    single = len(list(weight.children())) == 1 and similarity.scope == "layer"
    if not single or similarity.structure.name != "diagonal":
        return "", conv.weight.new_empty(0)
    (name,) = (name for name, p in weight.named_parameters() if p is similarity.numbers["diagonal"])
    prefix = ".".join(filter(None, (path, "parametrizations.weight.")))
    return prefix + name, weight.get_parameter("original").detach()


def _is_plain(conv: nn.Conv2d) -> bool:
    usual = conv.stride == (1, 1) and conv.dilation == (1, 1) and conv.groups == 1
    return usual and conv.padding_mode == "zeros" and not isinstance(conv.padding, str)


def _halves(pool: nn.Module) -> bool:
    """Whether this is 2×2 max pooling of stride 2."""
    usual = nn.MaxPool2d(2)
    names = ("kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices")
    return all(
        getattr(pool, name) in (value := getattr(usual, name), (value, value)) for name in names
    )
