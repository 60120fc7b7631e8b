"""The engine of the page: features as pictures arrive, lessons, and answers."""

from .lesson import Answer, Lesson, Neighbour
from .worker import Engine, Status

__all__ = ["Answer", "Engine", "Lesson", "Neighbour", "Status"]
