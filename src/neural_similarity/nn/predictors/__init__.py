"""Networks that predict a similarity from the input (Section 3.3, Appendix A).

==========================  ======================================  ==============================
predictor                   predicts M from                         prediction
==========================  ======================================  ==============================
:class:`PatchPredictor`     the patch, by a layer of its size       one M per position (the paper)
:class:`ConvPredictor`      the patch, by a plain layer of its size one M per position
:class:`PixelPredictor`     the pixel under the patch's centre      one M per position
:class:`ImagePredictor`     the average over the image              one M per image
:class:`PairPredictor`      pairs of the centre and each tap        one M per position
==========================  ======================================  ==============================

Each is a configuration that makes a network for a layer. :class:`PatchPredictor` is also called
:class:`SpherePredictor`, after the operation in it.
"""

from __future__ import annotations

from .base import Gate, PredictorConfig, PredictorNetwork
from .image import ImageLayers, ImagePredictor
from .pair import PairNetwork, PairPredictor
from .patch import ConvPredictor, PatchConfig, SpherePredictor, TwoLayers
from .patch_layers import size_preserving
from .pixel import PixelPredictor
from .registry import (
    list_predictors,
    predictor_class,
    predictor_from_config,
    register_predictor,
)
from .windows import Window, centre_pixels

__all__ = [
    "ConvPredictor",
    "Gate",
    "ImageLayers",
    "ImagePredictor",
    "PairNetwork",
    "PairPredictor",
    "PatchConfig",
    "PatchPredictor",
    "PixelPredictor",
    "PredictorConfig",
    "PredictorNetwork",
    "SpherePredictor",
    "TwoLayers",
    "Window",
    "centre_pixels",
    "list_predictors",
    "predictor_class",
    "predictor_from_config",
    "register_predictor",
    "size_preserving",
]

PatchPredictor = SpherePredictor
"""The paper's predictor, :class:`SpherePredictor`, named after what it predicts from."""

for _predictor in (SpherePredictor, ConvPredictor, PixelPredictor, ImagePredictor, PairPredictor):
    register_predictor(_predictor)
