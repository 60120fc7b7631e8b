"""Neural similarity learning for PyTorch.

A convolution computes ``Wᵀ M X``; M, the similarity between kernel and patch, is learned.
"""

from . import models, nn, ops, structures
from .convert import (
    TrainableSummary,
    attach,
    effective_state_dict,
    filter_orthogonality_penalty,
    freeze_backbone,
    load_similarity,
    merge,
    save_similarity,
    similarity_parameters,
    similarity_penalty,
    trainable_summary,
)
from .errors import (
    AttachError,
    FileFormatError,
    MergeError,
    NeuralSimilarityError,
    ResizedMaskWarning,
    ShapeError,
    SkippedLayerWarning,
    UnknownNameError,
)
from .models import create_model, list_models
from .nn.dynamic_similarity import DynamicSimilarity
from .nn.predictors import ConvPredictor, SpherePredictor
from .nn.static import StaticSimilarity

__version__ = "0.1.0"

__all__ = [
    "AttachError",
    "ConvPredictor",
    "DynamicSimilarity",
    "FileFormatError",
    "MergeError",
    "NeuralSimilarityError",
    "ResizedMaskWarning",
    "ShapeError",
    "SkippedLayerWarning",
    "SpherePredictor",
    "StaticSimilarity",
    "TrainableSummary",
    "UnknownNameError",
    "attach",
    "create_model",
    "effective_state_dict",
    "filter_orthogonality_penalty",
    "freeze_backbone",
    "list_models",
    "load_similarity",
    "merge",
    "models",
    "nn",
    "ops",
    "save_similarity",
    "similarity_parameters",
    "similarity_penalty",
    "structures",
    "trainable_summary",
]
