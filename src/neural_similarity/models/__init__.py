"""Networks by name."""

from . import cnn, resnet, spherenet
from .registry import create_model, list_models, register_model

__all__ = ["cnn", "create_model", "list_models", "register_model", "resnet", "spherenet"]
