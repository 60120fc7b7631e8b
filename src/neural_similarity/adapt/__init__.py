"""Adapt to your own images: a few images of each class in, a plain model out.

The main names:

- :class:`FewShotClassifier`: a classifier in the style of scikit-learn; ``fit``, ``predict``,
  ``save`` and ``load``. Its accuracy on new images is a :class:`CrossValidation`.
- :func:`load_backbone`, :func:`list_backbones`: networks that return features, as a
  :class:`FeatureExtractor`: pretrained ones by name, or those of a run, a file, timm or a
  function. :func:`default_backbone` is the best one installed, and :func:`missing_hint` tells
  what to install for a better one.
- :class:`Preprocessing`: how images are brought to the size and scale that a network expects.
- :func:`save_backbone`: write a network for use as a backbone.
- :func:`cross_validate`, :func:`fold_numbers`, :func:`near_duplicates`: tests of any methods on
  images, and how images are divided into folds.
- :class:`Calibration`, :func:`measure_calibration`: confidence compared with accuracy.
- :class:`Rejection`, :func:`fit_rejection`: which images are none of the classes.
- :func:`embed_images`, :class:`TrainingImages`, :func:`open_cache`: features of images, computed
  once for all methods and cached on disk. :data:`METHODS`, :func:`can_adapt`,
  :func:`make_adapter`: the methods that learn from them; :class:`StaticAdapter` is the method
  ``static``, :data:`TUNING` lists those that tune the network, and :func:`share_fits` saves time
  when several are compared.
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
from .classifier import FewShotClassifier
from .feature_cache import open_cache
from .methods import (
    METHODS,
    TUNING,
    AdaptedNetwork,
    StaticAdapter,
    can_adapt,
    make_adapter,
    share_fits,
)
from .preprocessing import Preprocessing
from .training_images import TrainingImages, embed_images
from .validation import (
    Calibration,
    CrossValidation,
    Rejection,
    cross_validate,
    fit_rejection,
    fold_numbers,
    measure_calibration,
    near_duplicates,
)

__all__ = [
    "METHODS",
    "TUNING",
    "AdaptedNetwork",
    "Calibration",
    "CrossValidation",
    "FeatureExtractor",
    "FewShotClassifier",
    "Preprocessing",
    "Rejection",
    "StaticAdapter",
    "TrainingImages",
    "can_adapt",
    "cross_validate",
    "default_backbone",
    "embed_images",
    "fit_rejection",
    "fold_numbers",
    "list_backbones",
    "load_backbone",
    "make_adapter",
    "measure_calibration",
    "missing_hint",
    "near_duplicates",
    "open_cache",
    "save_backbone",
    "share_fits",
]
