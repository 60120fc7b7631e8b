"""Method ``blocks``: the weights of the last layers and a classifier, by gradient descent.

It needs enough images: in ``python -m experiments.adapt``, "last blocks" (the same method with
other learning rates) is worse than a classifier alone with five images per class, and better with
ten. The settings were chosen there, on validation classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import cos, pi

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...fewshot.inner_loop.call_with import call_with
from ...fewshot.inner_loop.episode_parameters import BIAS, WEIGHT, Tensors
from .. import linear_heads as heads
from .adam import Adam
from .base import AdaptedNetwork
from .cached_trunk import CachedTrunk
from .upper_part import UpperPartAdapter, network_to_tune

__all__ = ["BlocksAdapter"]

_LAYERS = 4  # the last convolutions and linear layers, with the norms between and after them
_EPOCHS, _BATCH, _RATE = 20, 16, 3e-4


@dataclass(eq=False)
class BlocksAdapter(UpperPartAdapter):
    """The weights of the last layers and a classifier on unit-length features.

    Mirror images are used too. BatchNorm keeps its statistics.

    Args:
        data: the images and their features.
    """

    def __post_init__(self) -> None:
        module, shape = network_to_tune(self.data.backbone), self.data.backbone.image_shape
        image = next(module.parameters()).new_zeros(1, *shape)
        layers = _last_layers(module, image)
        self.prepare(CachedTrunk(module, layers, shape), _tuned_names(module, layers, image))

    def fit(self, rows: Tensor) -> Tensors:
        labels, n_way = self.data.labels[rows], self.data.n_way
        weights = heads.class_weights(labels, n_way)
        features = self.data.features
        tensors = {name: tensor.clone() for name, tensor in self.start.items()}
        tensors[WEIGHT] = features.new_zeros(n_way, features.shape[1])
        tensors[BIAS] = features.new_zeros(n_way)
        leaves = [tensor.requires_grad_() for tensor in tensors.values()]
        optimiser, generator = Adam(leaves, [_RATE] * len(leaves)), torch.Generator().manual_seed(0)
        steps, step = _EPOCHS * -(-len(rows) // _BATCH), 0
        for _ in range(_EPOCHS):
            for batch in torch.randperm(len(rows), generator=generator).split(_BATCH):
                views = torch.randint(2, batch.shape, generator=generator)
                with torch.enable_grad():
                    scores = self._scores(tensors, self.maps[views, rows[batch]])
                    losses = F.cross_entropy(scores, labels[batch], reduction="none")
                    loss = (losses * weights[batch].to(losses)).mean()
                    slopes = torch.autograd.grad(loss, leaves)
                optimiser.step(slopes, share=(1 + cos(pi * step / steps)) / 2)
                step += 1
        return {name: tensor.detach() for name, tensor in tensors.items()}

    @torch.no_grad()
    def scores(self, learned: Tensors, rows: Tensor) -> Tensor:
        parts = [self._scores(learned, self.maps[0, part]) for part in rows.split(_BATCH)]
        return torch.cat(parts)

    def network(self, learned: Tensors) -> AdaptedNetwork:
        classifier = heads.linear(learned[WEIGHT] * self._length, learned[BIAS])
        network = AdaptedNetwork(self.whole_with(learned), classifier, True)
        return network.eval().requires_grad_(False)

    @property
    def _length(self) -> float:
        """The length of the classifier's input features: their entries are then about one."""
        return float(self.data.features.shape[1] ** 0.5)

    def _scores(self, tensors: Tensors, maps: Tensor) -> Tensor:
        features = self._length * self.unit_features(tensors, maps)
        return F.linear(features, tensors[WEIGHT], tensors[BIAS])


def _last_layers(module: nn.Module, image: Tensor) -> list[str]:
    """The last layers with weights that run on an image, and those that run between and after.

    A layer is a module that has parameters, and no child modules except parametrizations.
    """
    names = {
        part: name
        for name, part in module.named_modules()
        if any(True for _ in part.parameters())
        and {child for child, _ in part.named_children()} <= {"parametrizations"}
    }
    begun: list[nn.Module] = []
    handles = [
        part.register_forward_pre_hook(lambda part, _input: begun.append(part)) for part in names
    ]
    try:
        with torch.no_grad():
            module(image)
    finally:
        for handle in handles:
            handle.remove()
    order = list(dict.fromkeys(begun))
    weighted = [n for n, part in enumerate(order) if isinstance(part, nn.Conv2d | nn.Linear)]
    return [names[part] for part in order[weighted[-_LAYERS:][0] :]]


def _tuned_names(module: nn.Module, layers: list[str], image: Tensor) -> list[str]:
    """The parameters of the layers that affect the output, except those with two names."""
    names: dict[int, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    inside = tuple(f"{layer}." for layer in layers)
    single = [of[0] for of in names.values() if len(of) == 1 and of[0].startswith(inside)]
    leaves = {name: module.get_parameter(name).detach().clone() for name in single}
    with torch.enable_grad():
        for leaf in leaves.values():
            leaf.requires_grad_()
        output = call_with(module, leaves, image)
        slopes = torch.autograd.grad(output.sum(), list(leaves.values()), allow_unused=True)
    return [name for name, slope in zip(leaves, slopes, strict=True) if slope is not None]
