"""Adapt to your own images: a few images of each class in, a plain model out.

The main names:

- :class:`FewShotClassifier`: a classifier in the style of scikit-learn; ``fit``, ``predict``,
  ``save`` and ``load``. Its accuracy on new images is a :class:`CrossValidation`.
- :func:`load_backbone`, :func:`list_backbones`: networks that give features, as a
  :class:`FeatureExtractor`: pretrained ones by name, or those of a run, a file, timm or a
  function. :func:`default_backbone` is the best that is installed, and :func:`missing_hint` says
  what to install for a better one.
- :class:`Preprocessing`: how images are brought to the size and scale that a network reads.
- :func:`save_backbone`: write a network for use as a backbone.
- :func:`cross_validate`, :func:`fold_numbers`, :func:`near_duplicates`: tests of any methods on
  images, and how images are divided for that.
- :class:`Calibration`, :func:`measure_calibration`: confidence against how often it is right.
- :class:`Rejection`, :func:`fit_rejection`: which images are none of the classes.
- :class:`AdaptedNetwork`: the resulting ``nn.Module``, from images to scores.
"""

from .backbones import (
    FeatureExtractor,
    default_backbone,
    list_backbones,
    load_backbone,
    missing_hint,
    save_backbone,
)
from .calibration import Calibration, measure_calibration
from .classifier import FewShotClassifier
from .cross_validation import CrossValidation, cross_validate
from .duplicates import near_duplicates
from .folds import fold_numbers
from .methods import AdaptedNetwork
from .preprocessing import Preprocessing
from .rejection import Rejection, fit_rejection

__all__ = [
    "AdaptedNetwork",
    "Calibration",
    "CrossValidation",
    "FeatureExtractor",
    "FewShotClassifier",
    "Preprocessing",
    "Rejection",
    "cross_validate",
    "default_backbone",
    "fit_rejection",
    "fold_numbers",
    "list_backbones",
    "load_backbone",
    "measure_calibration",
    "missing_hint",
    "near_duplicates",
    "save_backbone",
]
