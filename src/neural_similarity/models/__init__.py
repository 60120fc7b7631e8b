"""Networks by name."""

from . import spherenet
from .registry import create_model, list_models, register_model

__all__ = ["create_model", "list_models", "register_model", "spherenet"]
