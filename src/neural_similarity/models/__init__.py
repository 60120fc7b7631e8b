"""Networks by name."""

from . import cnn, efficientnet_lite, resnet, spherenet
from .pretrained_weights import PretrainedWeights
from .registry import create_model, list_models, model_weights, register_model

__all__ = [
    "PretrainedWeights",
    "cnn",
    "create_model",
    "efficientnet_lite",
    "list_models",
    "model_weights",
    "register_model",
    "resnet",
    "spherenet",
]
