"""Residual networks: ResNet-18, and the small ones for CIFAR.

`He et al., 2016 <https://arxiv.org/abs/1512.03385>`_. The paper's own networks have no shortcuts;
these show a similarity in other networks. ResNet-18 loads pretrained weights, because the names of
its parameters are torchvision's.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from typing import Any, Literal, get_args

import torch.nn.functional as F
from torch import Tensor, nn

from .. import _check
from ..errors import ShapeError
from .backbone import Backbone, ConvLayer, NormLayer, draw_from_he, most_layers
from .registry import register_model

__all__ = ["CONFIGURATIONS", "Configuration", "ResNet"]

Stem = Literal["imagenet", "cifar"]

_UNEVEN = {34: (3, 4, 6, 3)}  # only ResNet-34 has stages of different depths


@dataclass(frozen=True)
class Configuration:
    """A row of the table: arguments of :class:`ResNet`, and how large the network is.

    Args:
        parameters: of the plain network for ``num_classes`` classes of colour images.
    """

    parameters: int
    num_classes: int
    image_size: int
    depth: int
    widths: tuple[int, ...]
    stem: Stem

    def options(self) -> dict[str, Any]:
        """The arguments of :class:`ResNet`, without the number of classes."""
        counted = ("parameters", "num_classes")
        return {name: value for name, value in asdict(self).items() if name not in counted}


CONFIGURATIONS = {
    "resnet18": Configuration(11_689_512, 1000, 224, 18, (64, 128, 256, 512), "imagenet"),
    "resnet_cifar": Configuration(269_722, 10, 32, 20, (16, 32, 64), "cifar"),
}


class ResNet(Backbone):
    """Stages of residual blocks of two 3×3 convolutions, global average pooling, a classifier.

    A similarity goes to the 3×3 convolutions, and ``conv_layer`` makes only these.

    Args:
        num_classes: outputs of the classifier; 0 returns its input, ``(N, num_features)``.
        in_channels: channels of the image.
        image_size: side of the images it is meant for; any other side works too.
        depth: layers in all: 2 more than a multiple of twice the stages (18; 20, 32, 44, 56, 110
            for CIFAR), or 34.
        widths: filters in each stage; each but the first halves the map.
        stem: ``"imagenet"``: a plain 7×7 convolution and a pooling, both of stride 2, and a 1×1
            convolution as the shortcut of each block that changes the width. ``"cifar"``: a 3×3
            convolution, and zeros for the channels that a shortcut lacks, as in He et al.
        conv_layer: called as ``nn.Conv2d``.
        norm_layer: called with the number of channels.

    Example:
        >>> import torch
        >>> model = ResNet(5, depth=8, widths=(4, 8, 16), stem="cifar")
        >>> model(torch.randn(2, 3, 20, 20)).shape
        torch.Size([2, 5])
    """

    classifier_name = "fc"

    def __init__(
        self,
        num_classes: int = 10,
        *,
        in_channels: int = 3,
        image_size: int = 224,
        depth: int = 18,
        widths: tuple[int, ...] = (64, 128, 256, 512),
        stem: Stem = "imagenet",
        conv_layer: ConvLayer = nn.Conv2d,
        norm_layer: NormLayer = nn.BatchNorm2d,
    ) -> None:
        super().__init__(num_classes, in_channels, image_size)
        _check.known_name("ResNet", "stem", stem, get_args(Stem))
        for width in widths:
            _check.whole_numbers("ResNet", widths=width)
        if stem == "cifar" and any(a > b for a, b in pairwise(widths)):
            raise ShapeError(
                f"ResNet: expected widths that never decrease with stem 'cifar', got {widths}. Its "
                f"shortcuts fill missing channels with zeros, and cannot drop any. Use stem "
                f"'imagenet', or other widths."
            )
        blocks = _blocks(depth, len(widths))
        small, channels = stem == "cifar", widths[0]
        self.similarity_layers = r"conv1|.*\.conv[12]" if small else r".*\.conv[12]"
        self.conv1 = (
            conv_layer(in_channels, channels, 3, padding=1, bias=False)
            if small
            else nn.Conv2d(in_channels, channels, 7, stride=2, padding=3, bias=False)
        )
        self.bn1 = norm_layer(channels)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.Identity() if small else nn.MaxPool2d(3, stride=2, padding=1)
        self.stage_names = [f"layer{number}" for number in range(1, len(widths) + 1)]
        make = partial(_Block, padded=small, conv_layer=conv_layer, norm_layer=norm_layer)
        for stage, (width, count) in enumerate(zip(widths, blocks, strict=True)):
            first = make(channels, width, stride=2 if stage else 1)
            rest = (make(width, width, stride=1) for _ in range(count - 1))
            self.add_module(self.stage_names[stage], nn.Sequential(first, *rest))
            channels = width
        self.num_features = channels
        self.fc = self.make_classifier(self.num_classes)
        draw_from_he(self, nn.Conv2d, mode="fan_out")

    def forward_features(self, input: Tensor) -> Tensor:
        self.check_channels(input)
        features: Tensor = self.maxpool(self.relu(self.bn1(self.conv1(input))))
        for name in self.stage_names:
            features = self.get_submodule(name)(features)
        return features

    def pooled(self, features: Tensor) -> Tensor:
        return features.mean((2, 3))


class _Block(nn.Module):
    """Two 3×3 convolutions and a shortcut."""

    def __init__(
        self,
        channels: int,
        width: int,
        stride: int,
        padded: bool,
        conv_layer: ConvLayer,
        norm_layer: NormLayer,
    ) -> None:
        super().__init__()
        self.conv1 = conv_layer(channels, width, 3, stride=stride, padding=1, bias=False)
        self.bn1 = norm_layer(width)
        self.conv2 = conv_layer(width, width, 3, padding=1, bias=False)
        self.bn2 = norm_layer(width)
        self.relu = nn.ReLU(inplace=True)
        self.downsample: nn.Module = nn.Identity()
        if (channels, stride) != (width, 1):
            self.downsample = (
                _ZeroChannels(width - channels, stride)
                if padded
                else nn.Sequential(
                    nn.Conv2d(channels, width, 1, stride, bias=False), norm_layer(width)
                )
            )

    def forward(self, input: Tensor) -> Tensor:
        inner = self.relu(self.bn1(self.conv1(input)))
        inner = self.bn2(self.conv2(inner))
        output: Tensor = self.relu(inner + self.downsample(input))
        return output


class _ZeroChannels(nn.Module):
    """Every ``stride``-th position, with channels of zeros added (He et al., option A)."""

    def __init__(self, channels: int, stride: int) -> None:
        super().__init__()
        self.channels, self.stride = channels, stride

    def forward(self, input: Tensor) -> Tensor:
        some = input[:, :, :: self.stride, :: self.stride]
        return F.pad(some, (0, 0, 0, 0, 0, self.channels))


def _blocks(depth: int, stages: int) -> tuple[int, ...]:
    """How many blocks of two layers each stage has."""
    _check.whole_numbers("ResNet", depth=depth, stages=stages)
    most_layers("ResNet", depth)
    if stages == 4 and depth in _UNEVEN:
        return _UNEVEN[depth]
    count, rest = divmod(depth - 2, 2 * stages)
    if rest or count < 1:
        near = 2 + 2 * stages * max(1, round((depth - 2) / (2 * stages)))
        raise ShapeError(
            f"ResNet: expected depth to be 2 more than a multiple of {2 * stages}, got {depth}. "
            f"Each of {stages} stages has the same number of blocks of two layers. The nearest "
            f"is {near}."
        )
    return (count,) * stages


for _name, _row in CONFIGURATIONS.items():
    register_model(_name, partial(ResNet, **_row.options()))
