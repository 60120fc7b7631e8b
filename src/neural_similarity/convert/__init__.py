"""Similarities on whole models: attach, switch, train, save, merge."""

from .attach import attach
from .describe import LayerSummary, describe_layers
from .detach import detach
from .files import load_similarity, save_similarity
from .freeze import TrainableSummary, freeze_backbone, similarity_parameters, trainable_summary
from .merge import effective_state_dict, merge
from .multiply_adds import multiply_adds
from .norm_statistics import freeze_statistics
from .penalty import filter_orthogonality_penalty, keep_predictions, similarity_penalty
from .switch import active_similarity, list_similarities, set_similarity, without_similarity
from .unmerge import unmerge

__all__ = [
    "LayerSummary",
    "TrainableSummary",
    "active_similarity",
    "attach",
    "describe_layers",
    "detach",
    "effective_state_dict",
    "filter_orthogonality_penalty",
    "freeze_backbone",
    "freeze_statistics",
    "keep_predictions",
    "list_similarities",
    "load_similarity",
    "merge",
    "multiply_adds",
    "save_similarity",
    "set_similarity",
    "similarity_parameters",
    "similarity_penalty",
    "trainable_summary",
    "unmerge",
    "without_similarity",
]
