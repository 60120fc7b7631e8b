"""Feature extractors from networks of ``models`` that have pretrained weights, by name."""

from __future__ import annotations

from typing import cast

from ...errors import UnknownNameError
from ...fewshot.methods.classifiers.laplace import classifier_rows
from ...fewshot.network import remove_classifier
from ...models import PretrainedWeights, create_model, list_models, model_weights
from ...models.backbone import Backbone
from ..preprocessing import Preprocessing
from .extractor import FeatureExtractor
from .files import in_fast_layout, network_source

__all__ = ["extractor_from_weights", "installed_networks"]


def installed_networks() -> list[str]:
    """The networks whose weights are installed, the preferred one first."""
    return [name for name in list_models(pretrained=True) if _weights(name).is_installed()]


def extractor_from_weights(name: str, image_size: int | None = None) -> FeatureExtractor:
    """A network with its pretrained weights and preprocessing, without classifier.

    Its source describes how to build it without the weights, for files that contain others.
    """
    weights = _weights(name)
    whole = create_model(name, weights.num_classes, image_size=image_size, pretrained=True)
    base = classifier_rows(cast(Backbone, whole).get_classifier())
    module = in_fast_layout(remove_classifier(whole))
    side = weights.image_size if image_size is None else image_size
    preprocessing = Preprocessing(
        side, weights.mean, weights.std, weights.crop, weights.interpolation
    )
    source = network_source(module, name, {}, weights.in_channels, preprocessing.image_size)
    return FeatureExtractor(module, preprocessing, name, source, weights.card, base)


def _weights(name: str) -> PretrainedWeights:
    weights = model_weights(name)
    if weights is None:
        raise UnknownNameError(
            f"backbone: expected a network with pretrained weights, one of "
            f"{list_models(pretrained=True)}, got {name!r}. Choose one of them, or name the folder "
            f"of a run."
        )
    return weights
