"""The error for requests that the page cannot fulfil."""

from __future__ import annotations

from ..errors import NeuralSimilarityError

__all__ = ["RefusedError"]


class RefusedError(NeuralSimilarityError, ValueError):
    """A request that cannot be fulfilled; the message is one sentence that the page shows.

    Args:
        message: the sentence.
        status: the HTTP status: 400 bad request, 404 not found, 409 conflict, 413 too
            large, 415 not a picture.
    """

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status
