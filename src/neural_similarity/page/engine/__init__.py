"""The engine of the page: features of new pictures, training, and predictions."""

from .lesson import Answer, Lesson, Neighbour
from .worker import Engine, Status

__all__ = ["Answer", "Engine", "Lesson", "Neighbour", "Status"]
