"""Every error and warning the library raises on purpose.

Each also derives from the built-in class that a caller would expect, so ``except ValueError`` works
without this module.
"""

__all__ = [
    "AttachError",
    "ChangedStatisticsWarning",
    "DataError",
    "DivergedError",
    "DuplicateNameError",
    "ExportError",
    "FetchError",
    "FileFormatError",
    "MergeError",
    "NeuralSimilarityError",
    "NotFiniteError",
    "ResizedMaskWarning",
    "RunError",
    "ShapeError",
    "SkippedLayerWarning",
    "UnknownNameError",
]


class NeuralSimilarityError(Exception):
    """Base class of all errors that the library raises on purpose."""


class ShapeError(NeuralSimilarityError, ValueError):
    """A tensor or a size does not fit the others it is used with."""


class UnknownNameError(NeuralSimilarityError, ValueError):
    """A name is unknown; the message lists the choices and suggests the nearest one."""


class DuplicateNameError(NeuralSimilarityError, ValueError):
    """A name is registered that belongs to something else; the message names both."""


class AttachError(NeuralSimilarityError, ValueError):
    """A similarity cannot be attached; the model is unchanged."""


class MergeError(NeuralSimilarityError, RuntimeError):
    """A similarity cannot be merged; the model is unchanged."""


class FileFormatError(NeuralSimilarityError, ValueError):
    """A similarity file is damaged, from another program, or for another model."""


class DataError(NeuralSimilarityError, ValueError):
    """A data set is missing, damaged, or not what its name says."""


class FetchError(NeuralSimilarityError, RuntimeError):
    """A data set could not be downloaded; the files that were there before are unchanged."""


class ExportError(NeuralSimilarityError, RuntimeError):
    """A network cannot be exported to another format; nothing was written."""


class RunError(NeuralSimilarityError, ValueError):
    """A training run cannot start, continue or be read; the files on disk are unchanged."""


class NotFiniteError(RunError):
    """The scores of a network are NaN, so that its images cannot be classified."""


class DivergedError(RunError):
    """Training has diverged: its loss, its weights or its scores are no longer finite.

    Args:
        message: what happened.
        step: the training step at which it happened.
    """

    def __init__(self, message: str, step: int) -> None:
        super().__init__(message)
        self.step = step


class SkippedLayerWarning(UserWarning):
    """A layer was skipped because a similarity has nothing to learn there."""


class ChangedStatisticsWarning(UserWarning):
    """BatchNorm of a frozen network was trained on, and a file of the similarity lacks that."""


class ResizedMaskWarning(UserWarning):
    """A learned spatial mask was resized to a map of another size."""
