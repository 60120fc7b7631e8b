"""Feature extractors: shipped ones by name, and those of a run, a file, timm or a function."""

from .extractor import FeatureExtractor
from .files import save_backbone
from .load import list_backbones, load_backbone

__all__ = ["FeatureExtractor", "list_backbones", "load_backbone", "save_backbone"]
