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
from .cross_validation import CrossValidation
from .methods import AdaptedNetwork
from .preprocessing import Preprocessing

__all__ = [
    "AdaptedNetwork",
    "CrossValidation",
    "FeatureExtractor",
    "FewShotClassifier",
    "Preprocessing",
    "default_backbone",
    "list_backbones",
    "load_backbone",
    "missing_hint",
    "save_backbone",
]
