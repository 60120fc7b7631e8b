"""Similarity-only files: what they hold, what they fit, saving and loading."""

from .save_load import load_similarity, save_similarity

__all__ = ["load_similarity", "save_similarity"]
