"""What a method trains: a backbone that gives features, and a head of the method's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..errors import ShapeError
from ..train.distributed import each_alone

__all__ = ["FewShotNetwork", "batch_statistics"]


class FewShotNetwork(nn.Module):
    """Images ``(N, C, H, W)`` to features ``(N, num_features)``, and a head beside.

    Args:
        backbone: any module that returns features of whatever shape. Where there is a
            ``get_classifier()``, as in our networks and timm's, that layer is replaced by
            ``nn.Identity``.
        image_shape: ``(C, H, W)``.

    Attributes:
        num_features: D.
        map_shape: ``(channels, height, width)`` of the map that the features are, written flat;
            ``(D, 1, 1)`` if they are no map.
        frozen: keep the backbone as it is in evaluation, BatchNorm included, even in training.

    Example:
        >>> network = FewShotNetwork(nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()), (3, 6, 6))
        >>> network.num_features, network.map_shape
        (128, (8, 4, 4))
    """

    def __init__(self, backbone: nn.Module, image_shape: tuple[int, int, int]) -> None:
        super().__init__()
        _remove_classifier(backbone)
        self.backbone = backbone
        self.head: nn.Module = nn.Identity()
        self.frozen = False
        self.map_shape = _map_shape(backbone, image_shape)
        self.num_features = self.map_shape[0] * self.map_shape[1] * self.map_shape[2]

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.backbone(images)
        return features.flatten(1)

    def freeze(self) -> None:
        """Train nothing of the backbone from now on; its BatchNorm keeps its statistics."""
        self.frozen = True
        self.backbone.requires_grad_(False).eval()

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        if self.frozen:
            self.backbone.eval()
        return self


@contextmanager
def batch_statistics(model: nn.Module) -> Iterator[None]:
    """BatchNorm uses the statistics of the images at hand, and remembers nothing of them."""
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


def _remove_classifier(backbone: nn.Module) -> None:
    get_classifier = getattr(backbone, "get_classifier", None)
    classifier = get_classifier() if callable(get_classifier) else None
    for name, module in backbone.named_modules():
        if module is classifier and name:
            parent, _, last = name.rpartition(".")
            setattr(backbone.get_submodule(parent), last, nn.Identity())
            return


def _map_shape(backbone: nn.Module, image_shape: tuple[int, int, int]) -> tuple[int, int, int]:
    """Watch an image go through: the last map that is the features, if written flat."""
    maps: list[Tensor] = []

    def watch(module: nn.Module, input: object, output: object) -> None:
        if isinstance(output, Tensor) and output.dim() == 4:
            maps.append(output)

    like = next((p for p in backbone.parameters() if p.is_floating_point()), torch.empty(0))
    image = torch.rand(1, *image_shape, generator=torch.Generator().manual_seed(0)).to(like)
    training = backbone.training
    handles = [module.register_forward_hook(watch) for module in backbone.modules()]
    try:
        with torch.no_grad():
            features = backbone.eval()(image)
    except RuntimeError as error:
        raise ShapeError(
            f"FewShotNetwork: expected a backbone that reads images of shape {image_shape}, got an "
            f"error: {error} Create the backbone for this size and number of channels, or "
            f"resize the images."
        ) from error
    finally:
        backbone.train(training)
        for handle in handles:
            handle.remove()
    if not isinstance(features, Tensor) or features.dim() < 2 or len(features) != 1:
        got = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
        raise ShapeError(
            f"FewShotNetwork: expected features (1, ...) of an image, got {got}. The backbone must "
            f"return one tensor."
        )
    flat = features.flatten(1)
    for map in reversed(maps):
        if map.shape[0] == 1 and torch.equal(map.flatten(1), flat):
            return map.shape[1], map.shape[2], map.shape[3]
    return flat.shape[1], 1, 1
