"""Networks in formats that run without this library, checked equal before they are written."""

from .export import FORMATS, export_model

__all__ = ["FORMATS", "export_model"]
