"""What the page says when it cannot do what it was asked."""

from __future__ import annotations

from ..errors import NeuralSimilarityError

__all__ = ["RefusedError"]


class RefusedError(NeuralSimilarityError, ValueError):
    """A request that cannot be done; the message is one sentence that the page shows.

    Args:
        message: the sentence.
        status: the status of the answer, as in HTTP: 400 wrong, 404 not there, 409 taken, 413 too
            large, 415 no picture.
    """

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status
