"""The result of cross-validation: an accuracy, and what the tests say about every image."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .calibration import Calibration
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
        method: the method that was chosen, or the only one.
        accuracy: of the chosen method on new images, after training on all images; None if nothing
            could be tested.
        interval: the 95 % interval of the accuracy.
        tested: how many images were tested, each once.
        folds: how many folds were left out in turn; 0 if none.
        by_method: the share of the tests in which each method was right. The highest of several is
            too optimistic, and all learned from fewer images than the final classifier.
        confusion: ``(n_way, n_way)``, images of class i (row) that were predicted as j (column) in
            the tests of the chosen method.
        temperature: the scores are divided by it, so that their softmax gives probabilities.
        note: how to read these numbers.
        left_out: methods that were not compared, and why.
        predicted: ``(N,)``, the class of every image in the test of the chosen method; −1 if it was
            not tested.
        confidence: ``(N,)``, the probability of that class; 0 if it was not tested.
        before: calibration of the scores' softmax; None if nothing was tested.
        after: the same after division by the temperature, chosen without the fold that is tested.
        suspects: images whose label is likely wrong, the surest first.
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
        """The rows of the images that the tests got wrong, the surest first."""
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
    def from_dict(cls, values: Mapping[str, Any]) -> CrossValidation:
        """The inverse of :meth:`to_dict`; files of earlier versions have fewer values."""
        made = dict(values)
        if made["interval"] is not None:
            made["interval"] = (made["interval"][0], made["interval"][1])
        for name, dtype in _ARRAYS.items():
            if name in made:
                made[name] = np.array(made[name], dtype)
        for name in ("before", "after"):
            if made.get(name) is not None:
                made[name] = Calibration.from_dict(made[name])
        made["suspects"] = tuple(Suspect(*item) for item in made.get("suspects", ()))
        for name in ("duplicates", "conflicts"):
            made[name] = tuple(tuple(item) for item in made.get(name, ()))
        return cls(**made)
