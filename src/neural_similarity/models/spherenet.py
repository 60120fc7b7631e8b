"""The networks of Appendix B, Table 7: CNN-9 and SphereNet, with and without self-attention.

Appendix B of `Liu et al., 2019 <https://arxiv.org/abs/1910.13003>`_.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from torch import Tensor, nn

from .. import _check
from ..errors import ShapeError
from ..nn import SelfAttention2d, SphereConv2d
from .backbone import Backbone, ConvLayer, conv_norm_relu, draw_from_he, max_pooled, pooled_side
from .registry import register_model

__all__ = ["CONFIGURATIONS", "Configuration", "SphereNet"]


@dataclass(frozen=True)
class Configuration:
    """A row of Table 7.

    Args:
        conv_layer: what makes every convolution, those of attention included.
        attention: after which of the three poolings positions attend to each other.
        accuracy: the paper's, on CIFAR-10, in percent.
        parameters: for ten classes of 32 × 32 colour images.
    """

    conv_layer: ConvLayer
    attention: tuple[int, ...]
    accuracy: float
    parameters: int


CONFIGURATIONS = {
    "cnn9_wide": Configuration(nn.Conv2d, (), 90.86, 3_859_722),
    "cnn9_wide_attention": Configuration(nn.Conv2d, (1, 2, 3), 90.69, 4_008_205),
    "spherenet9": Configuration(SphereConv2d, (), 91.31, 3_859_722),
    "spherenet9_attention": Configuration(SphereConv2d, (1, 2, 3), 91.76, 4_008_205),
}


class SphereNet(Backbone):
    """Nine convolutions in three stages, a fully connected layer, a classifier.

    A stage is three 3×3 convolutions, each with BatchNorm and ReLU, then pooling, then perhaps
    attention. The convolution is an argument: ``SphereConv2d`` (cosine) makes the network of
    `SphereNet (Liu et al., 2017) <https://arxiv.org/abs/1711.03189>`_, ``nn.Conv2d`` a plain
    network of the same size. Only the plain one can have a dynamic similarity, which goes to the
    convolutions of the stages. Add :func:`~neural_similarity.filter_orthogonality_penalty` to the
    loss, as the paper does.

    Args:
        num_classes: outputs of the classifier; 0 returns its input, ``(N, num_features)``.
        in_channels: channels of the image.
        image_size: side of the square image; poolings drop an odd row and column.
        widths: filters in each stage.
        hidden: outputs of the fully connected layer.
        conv_layer, attention: as in :class:`Configuration`. The authors' code attends only after
            the first two poolings: ``attention=(1, 2)``.
        query_relu: put a ReLU after the query of attention, as the authors' code does.
        classifier_bias: False leaves the bias out, as the authors' code does.

    Example:
        >>> import torch
        >>> model = SphereNet(10, image_size=16, widths=(8, 12, 16), hidden=16, attention=(1,))
        >>> model(torch.randn(2, 3, 16, 16)).shape
        torch.Size([2, 10])
    """

    similarity_layers = r"stages\.\d+\.\d+"  # not the convolutions of attention

    def __init__(
        self,
        num_classes: int = 10,
        *,
        in_channels: int = 3,
        image_size: int = 32,
        widths: tuple[int, int, int] = (128, 192, 256),
        hidden: int = 256,
        conv_layer: ConvLayer = SphereConv2d,
        attention: tuple[int, ...] = (),
        query_relu: bool = False,
        classifier_bias: bool = True,
    ) -> None:
        super().__init__(num_classes, in_channels, image_size)
        _check.whole_numbers("SphereNet", hidden=hidden)
        for width in widths:
            _check.whole_numbers("SphereNet", widths=width)
        side = pooled_side("SphereNet", image_size, len(widths))
        if not set(attention) <= set(range(1, len(widths) + 1)):
            raise ShapeError(
                f"SphereNet: expected attention to name some of the poolings 1 to {len(widths)}, "
                f"got {attention}."
            )
        stages = []
        for stage, width in enumerate(widths, start=1):
            stages.append(_stage(in_channels, width, conv_layer))
            if stage in attention:
                attention_layer = SelfAttention2d(
                    width, conv_layer=conv_layer, query_relu=query_relu
                )
                stages[-1].append(attention_layer)
            in_channels = width
        self.stages = nn.Sequential(*stages)
        # A convolution as large as the map is fully connected, and can compare directions too.
        # As in the authors' code nothing stands between it and the classifier.
        self.fc = conv_layer(in_channels, hidden, side, bias=False)
        self.num_features, self.classifier_bias = hidden, classifier_bias
        self.classifier = self.make_classifier(self.num_classes)
        draw_from_he(self, nn.Conv2d)

    def make_classifier(self, num_classes: int) -> nn.Module:
        if self.classifier_bias or not num_classes:
            return super().make_classifier(num_classes)
        return nn.Linear(self.num_features, num_classes, bias=False)

    def forward_features(self, input: Tensor) -> Tensor:
        self.check_images(input)
        features: Tensor = self.stages(input)
        return features

    def pooled(self, features: Tensor) -> Tensor:
        vectors: Tensor = self.fc(features).flatten(1)
        return vectors


def _stage(channels: int, width: int, conv_layer: ConvLayer) -> nn.Sequential:
    layers: list[nn.Module] = []
    for _ in range(3):
        layers += conv_norm_relu(channels, width, conv_layer)
        channels = width
    return max_pooled(layers, nn.MaxPool2d(2))


for _name, _row in CONFIGURATIONS.items():
    register_model(_name, partial(SphereNet, conv_layer=_row.conv_layer, attention=_row.attention))
