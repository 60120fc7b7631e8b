"""Feature extractors from the package timm, which is imported only when needed."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from torch import nn

from ...errors import RunError, UnknownNameError
from ...fewshot.network import remove_classifier
from ..preprocessing import Preprocessing
from .extractor import FeatureExtractor

__all__ = ["build_timm", "extractor_from_timm"]


def extractor_from_timm(name: str, classifier: str | None) -> FeatureExtractor:
    """A network of timm with its pretrained weights and its preprocessing, without classifier."""
    timm = _import_timm()
    try:
        module = timm.create_model(name, pretrained=True)
    except RuntimeError as error:
        raise UnknownNameError(
            f"timm:{name}: expected the name of a timm network, got an unknown one ({error})."
        ) from error
    config = timm.data.resolve_model_data_config(module)
    channels, *sides = config["input_size"]
    interpolation = config.get("interpolation", "bicubic")
    preprocessing = Preprocessing(
        max(sides),
        tuple(config["mean"])[:channels],
        tuple(config["std"])[:channels],
        crop=config.get("crop_pct", 1.0),
        interpolation=interpolation if interpolation in ("bilinear", "bicubic") else "bicubic",
    )
    source = {"kind": "timm", "name": name, "classifier": classifier}
    return FeatureExtractor(
        remove_classifier(module, classifier), preprocessing, f"timm:{name}", source
    )


def build_timm(name: str, classifier: str | None) -> nn.Module:
    """The network of :func:`extractor_from_timm`, with new weights."""
    return remove_classifier(_import_timm().create_model(name, pretrained=False), classifier)


def _import_timm() -> Any:
    try:
        timm: Any = import_module("timm")
        import_module("timm.data")
    except Exception as error:  # its dependencies may fail in any way
        raise RunError(
            f"backbone: expected the package timm, got {type(error).__name__}: {error}. Install "
            f"it, or use another backbone: the folder of a run, a backbone file or "
            f"module:function."
        ) from error
    return timm
