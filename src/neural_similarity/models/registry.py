"""The networks by name."""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase
from inspect import Parameter, signature
from typing import Any, cast

from torch import nn

from .. import _check
from .._memory import limited_tensors
from ..convert.attach import attach
from ..errors import ShapeError, UnknownNameError
from ..nn.dynamic import DynamicSimilarity
from ..nn.static import StaticSimilarity
from .backbone import Backbone
from .pretrained_weights import PretrainedWeights

__all__ = ["create_model", "list_models", "model_weights", "register_model"]

_REGISTRY: dict[str, Callable[..., nn.Module]] = {}
_WEIGHTS: dict[str, PretrainedWeights] = {}
_SIMILARITIES: dict[str, Callable[[], StaticSimilarity | DynamicSimilarity | None]] = {
    "none": lambda: None,
    "static": StaticSimilarity,
    "dynamic": DynamicSimilarity,
}


def register_model(
    name: str, make: Callable[..., nn.Module], weights: PretrainedWeights | None = None
) -> None:
    """Register a network.

    Args:
        name: its name in :func:`create_model`.
        make: ``make(num_classes=..., in_channels=..., image_size=..., **options)`` builds it. If
            the network has an attribute ``similarity_layers``, a regular expression over the names
            of its layers, a similarity goes to these; otherwise to all convolutions.
        weights: pretrained weights that fit what ``make`` builds, which must then be a
            :class:`~neural_similarity.models.backbone.Backbone`; None if there are none.

    Raises:
        DuplicateNameError: the name belongs to another network.
    """
    if not isinstance(name, str) or not callable(make):
        raise ShapeError(
            f"register_model: expected a name and a function that makes the network, got {name!r} "
            f"and {make!r}. For example: register_model('tiny', tiny)."
        )
    _check.new_name("register_model", name, make, _REGISTRY)
    _REGISTRY[name] = make
    _WEIGHTS.pop(name, None)
    if weights is not None:
        _WEIGHTS[name] = weights


def create_model(
    name: str,
    num_classes: int = 10,
    similarity: str | StaticSimilarity | DynamicSimilarity | None = None,
    in_channels: int = 3,
    image_size: int | None = None,
    pretrained: bool = False,
    **options: Any,
) -> nn.Module:
    """A new network, with or without a similarity.

    Args:
        name: one of :func:`list_models`.
        num_classes: outputs of the classifier. With 0 there is none, and the network returns
            features, ``(N, num_features)``, as in timm.
        similarity: None or ``"none"``, ``"static"``, ``"dynamic"`` (both diagonal), or a
            configuration. Unless its ``target_modules`` names layers, it goes where the paper puts
            it: on the 3×3 convolutions, but not on a root layer. Weights drawn from one seed are
            the same with and without a similarity.
        in_channels: channels of the images.
        image_size: their side in pixels; None means the size that the network was designed for.
        pretrained: start from the weights of :func:`model_weights`, which are in a separate
            package. With another number of classes than theirs, the classifier is new.
        options: of the network's class, such as ``width`` or ``conv_layer``.

    Example:
        >>> import torch
        >>> model = create_model("cnn9", num_classes=5, similarity="static", image_size=8)
        >>> model(torch.randn(2, 3, 8, 8)).shape
        torch.Size([2, 5])
        >>> type(model.get_classifier()).__name__
        'Linear'
        >>> features = create_model("cnn9", num_classes=0, image_size=8)
        >>> features(torch.randn(2, 3, 8, 8)).shape, features.num_features
        (torch.Size([2, 256]), 256)
    """
    _check.known_name("create_model", "name", name, _REGISTRY)
    make, config = _REGISTRY[name], _similarity(similarity)
    if image_size is not None:
        options["image_size"] = image_size
    _check_options(name, make, options)
    arguments = {"num_classes": num_classes, "in_channels": in_channels, **options}
    weights = _known_weights(name) if pretrained else None
    advice = "Use smaller options, a smaller image_size or a smaller predictor"
    with limited_tensors(f"create_model({name!r})", "the network", advice):
        model = make(**{key: _check.plain_number(value) for key, value in arguments.items()})
        if weights is not None:
            weights.load_into(cast(Backbone, model), f"create_model({name!r})")
        return model if config is None else attach(model, config)


def list_models(pattern: str = "*", pretrained: bool = False) -> list[str]:
    """The names of all networks that match, sorted; ``*`` stands for anything.

    With ``pretrained``, only those for which there are pretrained weights, installed or not.

    >>> list_models("sphere*")
    ['spherenet9', 'spherenet9_attention']
    >>> list_models(pretrained=True)
    ['efficientnet_lite0', 'efficientnet_lite1', 'efficientnet_lite2']
    """
    names = _WEIGHTS if pretrained else _REGISTRY
    return sorted(name for name in names if fnmatchcase(name, pattern))


def model_weights(name: str) -> PretrainedWeights | None:
    """The pretrained weights of a network, and how to prepare images; None if it has none.

    >>> model_weights("efficientnet_lite0").image_size, model_weights("cnn4")
    (224, None)
    """
    _check.known_name("model_weights", "name", name, _REGISTRY)
    return _WEIGHTS.get(name)


def _similarity(similarity: object) -> StaticSimilarity | DynamicSimilarity | None:
    if similarity is None or isinstance(similarity, StaticSimilarity | DynamicSimilarity):
        return similarity
    what = "similarity to be a StaticSimilarity, a DynamicSimilarity or"
    _check.known_name("create_model", what, similarity, _SIMILARITIES)
    return _SIMILARITIES[str(similarity)]()


def _known_weights(name: str) -> PretrainedWeights:
    weights = _WEIGHTS.get(name)
    if weights is None:
        raise UnknownNameError(
            f"create_model: expected pretrained weights of {name!r}, got none: only "
            f"{', '.join(sorted(_WEIGHTS))} have them. Leave pretrained out."
        )
    return weights


def _check_options(name: str, make: Callable[..., nn.Module], options: dict[str, Any]) -> None:
    parameters = signature(make).parameters
    if any(p.kind is Parameter.VAR_KEYWORD for p in parameters.values()):
        return
    choices = set(parameters) - {"num_classes", "in_channels"}
    for option in options:
        if not choices:
            what = "Let its function take it" if option == "image_size" else "Leave it out"
            raise UnknownNameError(
                f"create_model({name!r}): expected no options, got {option!r}. {what}."
            )
        _check.known_name(f"create_model({name!r})", "an option", option, choices)
