"""What all networks of this library have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, Literal

from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize

from .. import _check
from .._memory import check_side
from ..errors import ShapeError
from ..nn.inventory import predictor_modules

__all__ = [
    "Backbone",
    "ConvLayer",
    "NormLayer",
    "conv_norm_relu",
    "draw_from_he",
    "max_pooled",
    "most_layers",
    "pooled_side",
]

ConvLayer = Callable[..., nn.Conv2d]
NormLayer = Callable[[int], nn.Module]

_MOST_LAYERS = 2000


class Backbone(nn.Module):
    """A network for square images: a feature map, then a head with a classifier.

    The methods have timm's names and meanings. ``forward(input)`` is
    ``forward_head(forward_features(input))``. With ``num_classes=0`` there is no classifier, and
    the network returns the features ``(N, num_features)`` that a classifier would read.

    Attributes:
        num_classes: outputs of the classifier; 0 without one.
        in_channels, image_size: of the images.
        num_features: the length of the feature vector that the classifier reads.
        similarity_layers: a regular expression over the names of the layers that
            :func:`~neural_similarity.attach` selects by default. They are also the ones that
            ``conv_layer`` makes.
    """

    num_classes: int
    in_channels: int
    image_size: int
    num_features: int
    similarity_layers: str
    classifier_name: ClassVar[str] = "classifier"

    def __init__(self, num_classes: int, in_channels: int, image_size: int) -> None:
        super().__init__()
        where = type(self).__name__
        _check.counts(where, num_classes=num_classes)
        _check.whole_numbers(where, in_channels=in_channels, image_size=image_size)
        check_side(where, _check.plain_number(image_size))
        self.num_classes = _check.plain_number(num_classes)
        self.in_channels, self.image_size = map(_check.plain_number, (in_channels, image_size))

    def get_classifier(self) -> nn.Module:
        """The last layer, from features to scores; ``nn.Identity`` with ``num_classes=0``."""
        return self.get_submodule(self.classifier_name)

    def reset_classifier(self, num_classes: int) -> None:
        """Replace the classifier, in place, by a new one for this many classes; 0 removes it."""
        _check.counts("reset_classifier", num_classes=num_classes)
        like = next(self.parameters())
        self.num_classes = _check.plain_number(num_classes)
        classifier = self.make_classifier(self.num_classes).to(like.device, like.dtype)
        setattr(self, self.classifier_name, classifier.train(self.training))

    def make_classifier(self, num_classes: int) -> nn.Module:
        """A new classifier, with PyTorch's initial weights."""
        return nn.Linear(self.num_features, num_classes) if num_classes else nn.Identity()

    def forward_features(self, input: Tensor) -> Tensor:
        """The last feature map, before it is pooled or flattened: ``(N, C, h, w)``."""
        raise NotImplementedError

    def pooled(self, features: Tensor) -> Tensor:
        """From the feature map to what the classifier reads: ``(N, num_features)``."""
        raise NotImplementedError

    def forward_head(self, features: Tensor, pre_logits: bool = False) -> Tensor:
        """From the feature map to scores ``(N, num_classes)``.

        With ``pre_logits``, or with ``num_classes=0``, it returns ``(N, num_features)``.
        """
        vectors = self.pooled(features)
        scores: Tensor = vectors if pre_logits else self.get_classifier()(vectors)
        return scores

    def forward(self, input: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(input))

    def check_channels(self, input: Tensor) -> None:
        """Raise unless these are images with the channels that the first layer was made for."""
        if input.dim() != 4 or input.shape[1] != self.in_channels:
            raise ShapeError(
                f"{type(self).__name__}: expected images of shape "
                f"{('N', self.in_channels, 'H', 'W')}, got {tuple(input.shape)}. Create the model "
                f"with another in_channels."
            )

    def check_images(self, input: Tensor) -> None:
        """Raise unless the images have the size that the fully connected layer was made for."""
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
    """A 3×3 convolution that keeps the size, its normalisation, and ReLU."""
    conv = conv_layer(channels, width, 3, padding=1, bias=False)
    return [conv, norm_layer(width), nn.ReLU(inplace=True)]


def max_pooled(layers: Sequence[nn.Module], pool: nn.MaxPool2d) -> nn.Sequential:
    """Layers that end in ReLU, with max pooling before the ReLU.

    The two commute, bit for bit, gradients included, and ReLU on the pooled map is cheaper.
    """
    *before, relu = layers
    return nn.Sequential(*before, pool, relu)


def draw_from_he(
    model: nn.Module,
    *kinds: type[nn.Conv2d | nn.Linear],
    mode: Literal["fan_in", "fan_out"] = "fan_in",
) -> None:
    """Draw new weights for these layers from the normal distribution of `He et al., 2015
    <https://arxiv.org/abs/1502.01852>`_.

    Similarities that came with ``conv_layer``, layers inside a convolution, and weights that are
    computed from others keep their initial values.
    """
    inside = predictor_modules(model)
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            inside |= set(module.modules()) - {module}
        weight = _own_weight(module) if isinstance(module, kinds) else None
        if weight is not None and module not in inside:
            nn.init.kaiming_normal_(weight, mode=mode, nonlinearity="relu")


def _own_weight(module: nn.Module) -> Tensor | None:
    """The layer's weight, without a similarity; None if it is computed or has no shape yet."""
    weight = module._parameters.get("weight")
    if parametrize.is_parametrized(module, "weight"):
        weight = getattr(module.get_submodule("parametrizations.weight"), "original", None)
    return None if weight is None or is_lazy(weight) else weight


def most_layers(where: str, layers: int) -> None:
    """Raise if a network would have more layers than anyone trains."""
    if layers > _MOST_LAYERS:
        raise ShapeError(f"{where}: expected at most {_MOST_LAYERS:,} layers, got {layers:,}.")


def pooled_side(where: str, image_size: int, poolings: int, entry_halvings: int = 0) -> int:
    """The side of the map after the last pooling; raise if nothing is left.

    Poolings drop an odd row and column (84 → 42 → 21 → 10). Layers that halve the map at the entry
    have padding and keep them.
    """
    least = 2**entry_halvings * ((1 << poolings) - 1) + 1
    if image_size < least:
        raise ShapeError(
            f"{where}: expected image_size of at least {least}, got {image_size}. {poolings} "
            f"poolings would leave no pixels. Enlarge the images, or use a network with fewer "
            f"poolings."
        )
    for _ in range(entry_halvings):
        image_size = (image_size + 1) // 2
    return image_size >> poolings
