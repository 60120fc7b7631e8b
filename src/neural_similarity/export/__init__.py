"""Networks in formats that run without this library; their scores are checked before writing."""

from .export import FORMATS, export_model

__all__ = ["FORMATS", "export_model"]
