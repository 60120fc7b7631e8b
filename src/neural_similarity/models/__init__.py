"""Networks by name."""

from . import cnn, spherenet
from .registry import create_model, list_models, register_model

__all__ = ["cnn", "create_model", "list_models", "register_model", "spherenet"]
