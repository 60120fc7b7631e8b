"""Networks that predict a similarity from the input (Section 3.3, Appendix A).

==========================  ======================================  ==============================
predictor                   predicts M from                         prediction
==========================  ======================================  ==============================
:class:`PatchPredictor`     the patch, by two 3×3 layers            one M per position (the paper)
:class:`ConvPredictor`      the patch, by two plain 3×3 layers      one M per position
:class:`PixelPredictor`     the pixel under the patch's centre      one M per position
:class:`ImagePredictor`     the average over the image              one M per image
:class:`PairPredictor`      pairs of the centre and each tap        one M per position
==========================  ======================================  ==============================

Each is a configuration that makes a network for a layer. :class:`PatchPredictor` is also called
:class:`SpherePredictor`, after the operation in it.
"""

from __future__ import annotations

from typing import Any

from ... import _check
from ..._json import build
from ...errors import FileFormatError
from .base import Gate, PredictorConfig, PredictorNetwork
from .image import ImageLayers, ImagePredictor
from .pair import PairNetwork, PairPredictor
from .patch import ConvPredictor, PatchConfig, SpherePredictor, TwoLayers
from .patch_layers import size_preserving
from .pixel import PixelPredictor
from .windows import Window, centre_pixels

__all__ = [
    "PREDICTORS",
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
    "predictor_from_config",
    "size_preserving",
]

PatchPredictor = SpherePredictor
"""The paper's predictor, :class:`SpherePredictor`, named after what it predicts from."""

PREDICTORS: dict[str, type[PredictorConfig]] = {
    predictor.kind: predictor
    for predictor in (SpherePredictor, ConvPredictor, PixelPredictor, ImagePredictor, PairPredictor)
}
"""Every predictor by its kind."""


def predictor_from_config(config: dict[str, Any]) -> PredictorConfig:
    """The configuration that ``to_config`` described."""
    _check.known_name("predictor", "kind", config["kind"], PREDICTORS)
    options = {name: value for name, value in config.items() if name != "kind"}
    return build(PREDICTORS[config["kind"]], options, "predictor", FileFormatError)
