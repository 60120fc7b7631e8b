"""What all networks here have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from torch import Tensor, nn
from torch.nn.utils import parametrize

from .. import _check
from ..errors import ShapeError
from ..nn.inventory import predictor_modules

__all__ = [
    "Backbone",
    "ConvLayer",
    "NormLayer",
    "conv_norm_relu",
    "draw_from_he",
    "max_pooled",
    "pooled_side",
]

ConvLayer = Callable[..., nn.Conv2d]
NormLayer = Callable[[int], nn.Module]


class Backbone(nn.Module):
    """A network for square images: features, then a classifier that reads them.

    ``get_classifier()(forward_features(input))`` is ``forward(input)``.

    Attributes:
        in_channels, image_size: what images look like.
        num_features: how many numbers of an image the classifier reads.
        similarity_layers: a regular expression over the names of the layers that
            :func:`~neural_similarity.create_model` puts a similarity on. They are also the ones
            that ``conv_layer`` makes.
    """

    in_channels: int
    image_size: int
    num_features: int
    similarity_layers: str
    classifier: nn.Module

    def __init__(self, num_classes: int, in_channels: int, image_size: int) -> None:
        super().__init__()
        where = type(self).__name__
        _check.whole_numbers(
            where, num_classes=num_classes, in_channels=in_channels, image_size=image_size
        )
        self.in_channels, self.image_size = map(_check.plain_number, (in_channels, image_size))

    def get_classifier(self) -> nn.Module:
        """The last layer, as in timm."""
        return self.classifier

    def forward_features(self, input: Tensor) -> Tensor:
        """What the classifier reads: ``(N, num_features)``."""
        raise NotImplementedError

    def forward(self, input: Tensor) -> Tensor:
        scores: Tensor = self.get_classifier()(self.forward_features(input))
        return scores

    def check_images(self, input: Tensor) -> None:
        """Raise unless the images have the size that the fully connected layer fits."""
        expected = (self.in_channels, self.image_size, self.image_size)
        if tuple(input.shape[1:]) != expected:
            raise ShapeError(
                f"{type(self).__name__}: expected images of shape {('N', *expected)}, got "
                f"{tuple(input.shape)}. The fully connected layer fits one size. Create the model "
                f"with another image_size or in_channels, or resize the images."
            )


def conv_norm_relu(
    channels: int, width: int, conv_layer: ConvLayer, norm_layer: NormLayer = nn.BatchNorm2d
) -> list[nn.Module]:
    """A 3×3 convolution that keeps the size, what normalises it, and ReLU."""
    conv = conv_layer(channels, width, 3, padding=1, bias=False)
    return [conv, norm_layer(width), nn.ReLU(inplace=True)]


def max_pooled(layers: Sequence[nn.Module], pool: nn.MaxPool2d) -> nn.Sequential:
    """Layers that end in ReLU, and max pooling.

    The two commute, bit for bit, gradients included. Pooled first there is less to rectify.
    """
    *before, relu = layers
    return nn.Sequential(*before, pool, relu)


def draw_from_he(
    model: nn.Module,
    *kinds: type[nn.Conv2d | nn.Linear],
    mode: Literal["fan_in", "fan_out"] = "fan_in",
) -> None:
    """Draw the weights of these layers anew, from He's normal distribution.

    Similarities that came with ``conv_layer`` keep their own start.
    """
    inside = predictor_modules(model)
    for module in model.modules():
        if isinstance(module, kinds) and module not in inside:
            parametrized = parametrize.is_parametrized(module, "weight")
            name = "parametrizations.weight.original" if parametrized else "weight"
            weight = module.get_parameter(name)
            nn.init.kaiming_normal_(weight, mode=mode, nonlinearity="relu")


def pooled_side(where: str, image_size: int, poolings: int, entry_halvings: int = 0) -> int:
    """The side of the map behind the last pooling; raise if nothing is left.

    Poolings drop an odd row and column (84 → 42 → 21 → 10). What halves at the entry is padded
    and keeps them.
    """
    least = 2**entry_halvings * ((1 << poolings) - 1) + 1
    if image_size < least:
        raise ShapeError(
            f"{where}: expected image_size of at least {least}, got {image_size}. {poolings} "
            f"poolings would leave nothing of it. Enlarge the images, or take a network with fewer "
            f"poolings."
        )
    for _ in range(entry_halvings):
        image_size = (image_size + 1) // 2
    return image_size >> poolings
