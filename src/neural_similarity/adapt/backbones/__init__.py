"""Feature extractors: pretrained ones by name, and those of a run, a file, timm or a function."""

from .extractor import FeatureExtractor
from .files import save_backbone
from .load import default_backbone, list_backbones, load_backbone, missing_hint

__all__ = [
    "FeatureExtractor",
    "default_backbone",
    "list_backbones",
    "load_backbone",
    "missing_hint",
    "save_backbone",
]
