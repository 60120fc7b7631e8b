"""Export networks to formats that run without this library; their scores are checked first."""

from .export import FORMATS, export_model

__all__ = ["FORMATS", "export_model"]
