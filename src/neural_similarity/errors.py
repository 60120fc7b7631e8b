"""Every error and warning the library raises on purpose.

Each also derives from the built-in class a caller would expect, so ``except ValueError`` keeps
working for people who never heard of this module.
"""

__all__ = [
    "AttachError",
    "DataError",
    "DivergedError",
    "ExportError",
    "FetchError",
    "FileFormatError",
    "MergeError",
    "NeuralSimilarityError",
    "ResizedMaskWarning",
    "RunError",
    "ShapeError",
    "SkippedLayerWarning",
    "UnknownNameError",
]


class NeuralSimilarityError(Exception):
    """Base class: catch this to catch everything the library raises on purpose."""


class ShapeError(NeuralSimilarityError, ValueError):
    """A tensor, or a size, does not fit what it is used with."""


class UnknownNameError(NeuralSimilarityError, ValueError):
    """A name that stands for nothing; the message lists the choices and the nearest one."""


class AttachError(NeuralSimilarityError, ValueError):
    """A similarity cannot be attached; the model is as it was."""


class MergeError(NeuralSimilarityError, RuntimeError):
    """A similarity cannot be merged; the model is as it was."""


class FileFormatError(NeuralSimilarityError, ValueError):
    """A similarity file is damaged, foreign, or made for another model."""


class DataError(NeuralSimilarityError, ValueError):
    """A data set is missing, damaged, or not what its name promises."""


class FetchError(NeuralSimilarityError, RuntimeError):
    """A data set could not be fetched; what was there before is as it was."""


class ExportError(NeuralSimilarityError, RuntimeError):
    """A network cannot be written in another format; nothing was written."""


class RunError(NeuralSimilarityError, ValueError):
    """A training run cannot begin, go on or be read; what was on disk is as it was."""


class DivergedError(RunError):
    """Training has diverged: its loss or its weights are no longer numbers.

    Args:
        message: what was seen.
        step: at which step.
    """

    def __init__(self, message: str, step: int) -> None:
        super().__init__(message)
        self.step = step


class SkippedLayerWarning(UserWarning):
    """A layer was passed over because a similarity has nothing to learn there."""


class ResizedMaskWarning(UserWarning):
    """A learned spatial mask was resized to a map of another size."""
