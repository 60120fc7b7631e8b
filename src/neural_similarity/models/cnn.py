"""The plain networks of the paper: CNN-9, CNN-10, their CNN++, and the few-shot CNN-4.

Appendix A of `Liu et al., 2019 <https://arxiv.org/abs/1910.13003>`_.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Literal, get_args

from torch import Tensor, nn

from .. import _check
from ..errors import ShapeError
from .backbone import (
    Backbone,
    ConvLayer,
    NormLayer,
    conv_norm_relu,
    draw_from_he,
    max_pooled,
    most_layers,
    pooled_side,
)
from .registry import register_model

__all__ = ["CNN", "CONFIGURATIONS", "Configuration", "authors_batch_norm"]

Stem = Literal["none", "root", "imagenet"]
Init = Literal["pytorch", "he"]

# What the authors' code uses: a decay of 0.999 is PyTorch's momentum 0.001.
authors_batch_norm = partial(nn.BatchNorm2d, eps=1e-3, momentum=0.001)


@dataclass(frozen=True)
class Configuration:
    """A row of the table: arguments of :class:`CNN`, and how large the network is.

    Args:
        parameters: of the plain network for ``num_classes`` classes of colour images of side
            ``image_size``.
    """

    parameters: int
    num_classes: int = 10
    image_size: int = 32
    width: int = 32
    growth: tuple[int, ...] = (1, 2, 4)
    depths: tuple[int, ...] = (3, 3, 3)
    hidden: int | None = 256
    stem: Stem = "none"
    conv_classifier: bool = False
    init: Init = "pytorch"

    def options(self) -> dict[str, Any]:
        """The arguments of :class:`CNN`, without the number of classes."""
        counted = ("parameters", "num_classes")
        return {name: value for name, value in asdict(self).items() if name not in counted}


CONFIGURATIONS = {
    "cnn4": Configuration(
        80_032, 64, image_size=84, growth=(1, 1, 1, 1), depths=(1, 1, 1, 1), hidden=None
    ),
    "cnn9": Configuration(1_008_554),
    "cnn9_plus": Configuration(2_504_282, width=48, depths=(4, 4, 4), hidden=320),
    "cnn9_root": Configuration(
        511_200, hidden=None, stem="root", conv_classifier=True, init="he"
    ),
    "cnn10": Configuration(8_902_056, 1000, 224, width=64, hidden=512, stem="imagenet"),
    "cnn10_plus": Configuration(
        9_709_112, 1000, 224, width=64, depths=(3, 3, 4), hidden=528, stem="imagenet"
    ),
}  # fmt: skip


class CNN(Backbone):
    """Stages of 3×3 convolutions with BatchNorm and ReLU, ended by 2×2 max pooling.

    A similarity goes to the convolutions of the stages, and ``conv_layer`` makes only these.

    Args:
        num_classes: outputs of the classifier; 0 returns its input, ``(N, num_features)``.
        in_channels: channels of the image.
        image_size: side of the square image. Poolings drop an odd row and column: three of them
            reduce 28 pixels to 3, and 8 pixels to 1.
        width: filters in the first stage.
        growth: filters in each stage, as multiples of ``width``.
        depths: convolutions in each stage.
        poolings: how many stages, from the first, end with pooling; by default all.
        hidden: outputs of a fully connected layer with ReLU before the classifier. With None there
            is no such layer, and the classifier reads the flattened map.
        stem: the layers before the first stage: ``"none"``; ``"root"``, a plain 3×3 convolution;
            ``"imagenet"``, a plain 7×7 convolution and a 3×3 pooling, both of stride 2.
        conv_classifier: write the classifier as a convolution over the whole map, without bias.
        init: ``"pytorch"`` keeps PyTorch's initial weights; ``"he"`` uses He normal initialisation,
            as the authors' code does.
        conv_layer: called as ``nn.Conv2d``.
        norm_layer: called with the number of channels; ``authors_batch_norm`` is the authors'.

    Example:
        >>> import torch
        >>> model = CNN(5, image_size=16, width=8, growth=(1, 2), depths=(1, 1), hidden=None)
        >>> model.forward_features(torch.randn(2, 3, 16, 16)).shape
        torch.Size([2, 16, 4, 4])
        >>> model.num_features
        256
    """

    similarity_layers = r"stages\.\d+\.\d+"

    def __init__(
        self,
        num_classes: int = 10,
        *,
        in_channels: int = 3,
        image_size: int = 32,
        width: int = 32,
        growth: tuple[int, ...] = (1, 2, 4),
        depths: tuple[int, ...] = (3, 3, 3),
        poolings: int | None = None,
        hidden: int | None = 256,
        stem: Stem = "none",
        conv_classifier: bool = False,
        init: Init = "pytorch",
        conv_layer: ConvLayer = nn.Conv2d,
        norm_layer: NormLayer = nn.BatchNorm2d,
    ) -> None:
        super().__init__(num_classes, in_channels, image_size)
        _check.known_name("CNN", "stem", stem, get_args(Stem))
        _check.known_name("CNN", "init", init, get_args(Init))
        poolings = len(depths) if poolings is None else poolings
        _check_widths(width, growth, depths, poolings, hidden)
        side = pooled_side("CNN", image_size, poolings, 2 if stem == "imagenet" else 0)
        self.stem = _stem(stem, in_channels, width, norm_layer)
        channels = in_channels if stem == "none" else width
        stages = []
        for number, (multiple, depth) in enumerate(zip(growth, depths, strict=True)):
            layers: list[nn.Module] = []
            for _ in range(depth):
                layers += conv_norm_relu(channels, width * multiple, conv_layer, norm_layer)
                channels = width * multiple
            pooled = number < poolings
            stages.append(max_pooled(layers, nn.MaxPool2d(2)) if pooled else nn.Sequential(*layers))
        self.stages = nn.Sequential(*stages)
        self.hidden = nn.Sequential()
        self.num_features = channels * side**2
        if hidden is not None:
            self.hidden.extend([nn.Linear(self.num_features, hidden), nn.ReLU(inplace=True)])
            self.num_features, channels, side = hidden, hidden, 1
        self.classifier_map = (channels, side) if conv_classifier else None
        self.classifier = self.make_classifier(self.num_classes)
        if init == "he":
            draw_from_he(self, nn.Conv2d, nn.Linear)

    def make_classifier(self, num_classes: int) -> nn.Module:
        if self.classifier_map is None or not num_classes:
            return super().make_classifier(num_classes)
        return _conv_classifier(*self.classifier_map, num_classes)

    def forward_features(self, input: Tensor) -> Tensor:
        self.check_images(input)
        features: Tensor = self.stages(self.stem(input))
        return features

    def pooled(self, features: Tensor) -> Tensor:
        vectors: Tensor = self.hidden(features.flatten(1))
        return vectors


def _check_widths(
    width: int, growth: tuple[int, ...], depths: tuple[int, ...], poolings: int, hidden: int | None
) -> None:
    _check.whole_numbers("CNN", width=width, hidden=1 if hidden is None else hidden)
    if not growth or len(growth) != len(depths):
        raise ShapeError(
            f"CNN: expected growth and depths for the same stages, got {growth} and {depths}."
        )
    for multiple, depth in zip(growth, depths, strict=True):
        _check.whole_numbers("CNN", growth=multiple, depths=depth)
    _check.counts("CNN", poolings=poolings)
    if poolings > len(depths):
        raise ShapeError(
            f"CNN: expected at most one pooling per stage, got {poolings} poolings and "
            f"{len(depths)} stages."
        )
    most_layers("CNN", sum(depths))


def _stem(kind: Stem, channels: int, width: int, norm_layer: NormLayer) -> nn.Sequential:
    if kind == "none":
        return nn.Sequential()
    if kind == "root":
        return nn.Sequential(*conv_norm_relu(channels, width, nn.Conv2d, norm_layer))
    conv = nn.Conv2d(channels, width, 7, stride=2, padding=3, bias=False)
    layers = [conv, norm_layer(width), nn.ReLU(inplace=True)]
    return max_pooled(layers, nn.MaxPool2d(3, stride=2, padding=1))


def _conv_classifier(channels: int, side: int, num_classes: int) -> nn.Sequential:
    """A convolution as large as the map, from flat features to flat scores, like a linear layer."""
    return nn.Sequential(
        nn.Unflatten(1, (channels, side, side)),
        nn.Conv2d(channels, num_classes, side, bias=False),
        nn.Flatten(),
    )


for _name, _row in CONFIGURATIONS.items():
    register_model(_name, partial(CNN, **_row.options()))
