"""Tuning on the support set of an episode: one episode at a time, or many at once."""

from .many_episodes import ManyEpisodes

__all__ = ["ManyEpisodes"]
