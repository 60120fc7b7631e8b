"""The result of cross-validation: an accuracy, and the test result of every image."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..._json import Count, Share, build
from ...errors import FileFormatError
from .calibration import Bin, Calibration
from .folds import NEVER
from .wrong_labels import Suspect

__all__ = ["CrossValidation", "Rows"]

Rows = tuple[int, ...]
_ARRAYS: dict[str, type] = {
    "confusion": np.int64,
    "predicted": np.int64,
    "confidence": np.float64,
}


def _nothing(name: str) -> Any:
    return lambda: np.zeros(0, _ARRAYS[name])


@dataclass(frozen=True)
class CrossValidation:
    """The result of cross-validation.

    Attributes:
        method: the chosen method, or the only one.
        accuracy: of the chosen method on new images, after training on all images; None if nothing
            could be tested.
        interval: the 95 % interval of the accuracy.
        tested: how many images were tested, each once.
        folds: number of folds; 0 if none.
        by_method: the share of the tests in which each method was right. The highest of several is
            too optimistic, and all were trained on fewer images than the final classifier.
        confusion: ``(n_way, n_way)``, images of class i (row) that were predicted as j (column) in
            the tests of the chosen method.
        temperature: the scores are divided by it, so that their softmax is calibrated.
        note: how to interpret these numbers.
        left_out: methods that were not compared, and why.
        predicted: ``(N,)``, the class of every image in the test of the chosen method; −1 if it was
            not tested.
        confidence: ``(N,)``, the probability of that class; 0 if it was not tested.
        before: calibration of the scores' softmax; None if nothing was tested.
        after: the same after division by the temperature, fitted without the tested fold.
        suspects: images whose label is likely wrong, the most confident first.
        duplicates: the rows of every group of near-identical images.
        conflicts: those groups whose images have different labels.
    """

    method: str
    accuracy: float | None
    interval: tuple[float, float] | None
    tested: int
    folds: int
    by_method: Mapping[str, float]
    confusion: NDArray[np.int64] = field(repr=False)
    temperature: float
    note: str
    left_out: Mapping[str, str] = field(default_factory=dict)
    predicted: NDArray[np.int64] = field(default_factory=_nothing("predicted"), repr=False)
    confidence: NDArray[np.float64] = field(default_factory=_nothing("confidence"), repr=False)
    before: Calibration | None = field(default=None, repr=False)
    after: Calibration | None = field(default=None, repr=False)
    suspects: tuple[Suspect, ...] = ()
    duplicates: tuple[Rows, ...] = ()
    conflicts: tuple[Rows, ...] = ()

    @property
    def is_tested(self) -> bool:
        """Whether there is an accuracy; if not, confidences are not calibrated either."""
        return self.tested > 0

    def misclassified(self, labels: Tensor) -> Tensor:
        """The rows of the images that the tests got wrong, the most confident first."""
        predicted = torch.from_numpy(self.predicted)
        rows = ((predicted != NEVER) & (predicted != labels)).nonzero()[:, 0]
        return rows[torch.from_numpy(self.confidence)[rows].argsort(descending=True, stable=True)]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for a file."""
        values = dict(vars(self))
        for name in ("by_method", "left_out"):
            values[name] = dict(values[name])
        for name in _ARRAYS:
            values[name] = values[name].tolist()
        for name in ("before", "after"):
            values[name] = None if values[name] is None else values[name].to_dict()
        for name in ("suspects", "duplicates", "conflicts"):
            values[name] = [list(item) for item in values[name]]
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], where: object = "values") -> CrossValidation:
        """The inverse of :meth:`to_dict`; ``where`` is the file that the values come from.

        Files of earlier versions have fewer values.
        """
        place = f"{where}, 'cross_validation'"
        stored = build(_Stored, dict(values), place, FileFormatError)
        if reason := stored.disagreement():
            raise FileFormatError(f"{place}: expected {reason}. The file is damaged. Adapt again.")
        parts: dict[str, Any] = dict(vars(stored))
        parts |= {name: np.array(parts[name], dtype) for name, dtype in _ARRAYS.items()}
        for name in ("before", "after"):
            if parts[name] is not None:
                parts[name] = Calibration(tuple(Bin(*one) for one in parts[name].bins))
        parts["suspects"] = tuple(Suspect(*one) for one in stored.suspects)
        for name in ("duplicates", "conflicts"):
            parts[name] = tuple(tuple(rows) for rows in parts[name])
        return cls(**parts)


@dataclass(frozen=True)
class _StoredCalibration:
    bins: list[tuple[Share, Share, Count]]


@dataclass(frozen=True)
class _Stored:
    """A :class:`CrossValidation` in a file."""

    method: str
    accuracy: Share | None
    interval: tuple[float, float] | None
    tested: Count
    folds: Count
    by_method: dict[str, float]
    confusion: list[list[Count]]
    temperature: float
    note: str
    left_out: dict[str, str] = field(default_factory=dict)
    predicted: list[int] = field(default_factory=list)
    confidence: list[Share] = field(default_factory=list)
    before: _StoredCalibration | None = None
    after: _StoredCalibration | None = None
    suspects: list[tuple[Count, Count, Count, Share]] = field(default_factory=list)
    duplicates: list[list[Count]] = field(default_factory=list)
    conflicts: list[list[Count]] = field(default_factory=list)

    def disagreement(self) -> str | None:
        """Which stored values contradict each other, in words; None if none do."""
        n_way, images = len(self.confusion), len(self.predicted)
        if any(len(row) != n_way for row in self.confusion):
            return f"'confusion' with {n_way} values per row, got {self.confusion}"
        if len(self.confidence) != images:
            return f"a confidence for each of {images} images, got {len(self.confidence)}"
        if any(not NEVER <= one < n_way for one in self.predicted):
            return f"'predicted' from {NEVER} to {n_way - 1}, got {self.predicted}"
        if any(row >= images or max(a, b) >= n_way for row, a, b, _ in self.suspects):
            return f"'suspects' among {images} images and {n_way} classes, got {self.suspects}"
        groups = (*self.duplicates, *self.conflicts)
        if any(row >= images for group in groups for row in group):
            return f"'duplicates' and 'conflicts' among {images} images, got {groups}"
        return None
