"""Adapting to your own images: a few of each class in, a plain model out."""

from .backbones import FeatureExtractor, list_backbones, load_backbone, save_backbone
from .classifier import FewShotClassifier
from .cross_validation import CrossValidation
from .methods import AdaptedNetwork
from .preprocessing import Preprocessing

__all__ = [
    "AdaptedNetwork",
    "CrossValidation",
    "FeatureExtractor",
    "FewShotClassifier",
    "Preprocessing",
    "list_backbones",
    "load_backbone",
    "save_backbone",
]
