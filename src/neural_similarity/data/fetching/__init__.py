"""Fetching data sets: sources, downloads that resume, archives that stay inside their folder."""

from .get import Got, find, get_data, verify

__all__ = ["Got", "find", "get_data", "verify"]
