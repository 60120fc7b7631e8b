"""Fetching data sets: where they come from, downloads that resume, archives that stay inside."""

from .get import Got, find, get_data, verify

__all__ = ["Got", "find", "get_data", "verify"]
