"""What a method trains: a backbone that returns features, and the method's head."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from .. import _check
from ..convert.probe import evaluation
from ..errors import ShapeError
from ..train.distributed import each_alone

__all__ = ["FewShotNetwork", "batch_statistics", "remove_classifier"]


class FewShotNetwork(nn.Module):
    """A backbone from images ``(N, C, H, W)`` to features ``(N, num_features)``, and a head.

    Args:
        backbone: any module that returns features of any shape. Its classifier, if it has a
            ``get_classifier()`` as our networks and timm's do, is removed.
        image_shape: ``(C, H, W)``.

    Attributes:
        num_features: D.
        map_shape: ``(channels, height, width)`` of the feature map before it is flattened;
            ``(D, 1, 1)`` if the features do not come from a map.
        frozen: keep the backbone in evaluation mode, BatchNorm included, even in training.
        base_mean: the mean feature ``(D,)`` of the base images, for methods that need it; None
            until set. It is not part of the weights.

    Example:
        >>> network = FewShotNetwork(nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()), (3, 6, 6))
        >>> network.num_features, network.map_shape
        (128, (8, 4, 4))
    """

    def __init__(self, backbone: nn.Module, image_shape: tuple[int, int, int]) -> None:
        super().__init__()
        self.backbone = remove_classifier(backbone)
        self.head: nn.Module = nn.Identity()
        self.frozen = False
        self.base_mean: Tensor | None
        self.register_buffer("base_mean", None, persistent=False)
        self.map_shape = _map_shape(backbone, image_shape)
        self.num_features = self.map_shape[0] * self.map_shape[1] * self.map_shape[2]

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.backbone(images)
        return features.flatten(1)

    def freeze(self) -> None:
        """Stop training the backbone; its BatchNorm keeps its statistics."""
        self.frozen = True
        self.backbone.requires_grad_(False).eval()

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        if self.frozen:
            self.backbone.eval()
        return self


@contextmanager
def batch_statistics(model: nn.Module) -> Iterator[None]:
    """Let BatchNorm use the statistics of the current images, without storing them."""
    norms = [m for m in model.modules() if isinstance(m, _BatchNorm)]
    before = [(norm.training, norm.track_running_stats) for norm in norms]
    for norm in norms:
        norm.training, norm.track_running_stats = True, False
    try:
        with each_alone(model):
            yield
    finally:
        for norm, (training, track) in zip(norms, before, strict=True):
            norm.training, norm.track_running_stats = training, track


def remove_classifier(module: nn.Module, name: str | None = None) -> nn.Module:
    """The module with ``nn.Identity`` in place of its classifier, so that it returns features.

    Args:
        module: any network; it is changed in place. One without a classifier is left unchanged.
        name: the layer that computes the scores; None uses ``module.get_classifier()``, if it
            exists.

    Example:
        >>> network = nn.Sequential(nn.Flatten(), nn.Linear(12, 5))
        >>> remove_classifier(network, "1")(torch.zeros(2, 3, 2, 2)).shape
        torch.Size([2, 12])
    """
    if name is None:
        get_classifier = getattr(module, "get_classifier", None)
        classifier = get_classifier() if callable(get_classifier) else None
        name = next((n for n, m in module.named_modules() if m is classifier and n), None)
    if name is not None:
        names = [layer for layer, _ in module.named_modules() if layer]
        _check.known_name("backbone", "the classifier", name, names)
        parent, _, child = name.rpartition(".")
        setattr(module.get_submodule(parent), child, nn.Identity())
    return module


def _map_shape(backbone: nn.Module, image_shape: tuple[int, int, int]) -> tuple[int, int, int]:
    """The shape of the last map that equals the features once it is flattened."""
    maps: list[Tensor] = []

    def remember(module: nn.Module, input: object, output: object) -> None:
        if isinstance(output, Tensor) and output.dim() == 4:
            maps.append(output)

    like = next((p for p in backbone.parameters() if p.is_floating_point()), torch.empty(0))
    image = torch.rand(1, *image_shape, generator=torch.Generator().manual_seed(0)).to(like)
    handles = [module.register_forward_hook(remember) for module in backbone.modules()]
    try:
        with evaluation(backbone), torch.no_grad():
            features = backbone(image)
    except RuntimeError as error:
        raise ShapeError(
            f"FewShotNetwork: expected a backbone that reads images of shape {image_shape}, got an "
            f"error: {error} Create the backbone for this size and number of channels, or "
            f"resize the images."
        ) from error
    finally:
        for handle in handles:
            handle.remove()
    if not isinstance(features, Tensor) or features.dim() < 2 or len(features) != 1:
        got = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
        raise ShapeError(
            f"FewShotNetwork: expected features of shape (1, ...) for one image, got {got}. The "
            f"backbone must return one tensor."
        )
    flat = features.flatten(1)
    for map in reversed(maps):
        if map.shape[0] == 1 and torch.equal(map.flatten(1), flat):
            return map.shape[1], map.shape[2], map.shape[3]
    return flat.shape[1], 1, 1
