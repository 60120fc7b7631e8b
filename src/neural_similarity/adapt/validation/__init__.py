"""How good a method is on new images: folds, accuracy estimate, calibration and rejection."""

from .calibration import Calibration, measure_calibration
from .cross_validation import CrossValidation, cross_validate
from .duplicates import near_duplicates
from .folds import fold_numbers
from .rejection import Rejection, fit_rejection

__all__ = [
    "Calibration",
    "CrossValidation",
    "Rejection",
    "cross_validate",
    "fit_rejection",
    "fold_numbers",
    "measure_calibration",
    "near_duplicates",
]
