"""Similarities on whole models: attach, train, save, merge."""

from .attach import attach
from .describe import LayerSummary, describe_layers
from .files import load_similarity, save_similarity
from .freeze import TrainableSummary, freeze_backbone, similarity_parameters, trainable_summary
from .merge import effective_state_dict, merge
from .multiply_adds import multiply_adds
from .penalty import filter_orthogonality_penalty, similarity_penalty

__all__ = [
    "LayerSummary",
    "TrainableSummary",
    "attach",
    "describe_layers",
    "effective_state_dict",
    "filter_orthogonality_penalty",
    "freeze_backbone",
    "load_similarity",
    "merge",
    "multiply_adds",
    "save_similarity",
    "similarity_parameters",
    "similarity_penalty",
    "trainable_summary",
]
