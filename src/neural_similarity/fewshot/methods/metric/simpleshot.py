"""SimpleShot: nearest centroid on centred, unit-length features (Wang et al., 2019).

Paper: "SimpleShot: Revisiting Nearest-Neighbor Classification for Few-Shot Learning", Yan Wang,
Wei-Lun Chao, Kilian Q. Weinberger and Laurens van der Maaten, https://arxiv.org/abs/1911.04623.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch.nn.functional as F
from torch import Tensor

from ....errors import RunError
from ...network import FewShotNetwork
from ..base import FeatureMethod
from ..registry import register_method
from .proto import squared_distances

__all__ = ["SimpleShot", "Transform", "transformed"]

Transform = Literal["un", "l2n", "cl2n"]
"""How features are transformed: not at all; to unit length; or minus the mean of the base images,
then to unit length. The names are the paper's."""


@register_method
@dataclass(frozen=True)
class SimpleShot(FeatureMethod):
    r"""A network trained on base classes; a query belongs to the class with the nearest centroid.

    .. math:: s_w = -\left\| t(x) - \frac1K \sum_k t(x_{wk}) \right\|^2, \qquad
        t(x) = \frac{x - \bar x}{\|x - \bar x\|}

    with the features :math:`x_{wk}` of the K support images of class w, and :math:`\bar x` the mean
    feature of all base images. Nothing is adapted.

    Args:
        features: ``"cl2n"``, t as above, the paper's best; ``"l2n"``, without the mean; ``"un"``,
            untransformed.
    """

    features: Transform = "cl2n"

    name: ClassVar[str] = "simpleshot"
    trains_on: ClassVar[Literal["images", "episodes"]] = "images"

    @property
    def needs_base_mean(self) -> bool:
        return self.features == "cl2n"

    def feature_scores(self, network: FewShotNetwork, support: Tensor, query: Tensor) -> Tensor:
        support, query = (transformed(network, x, self.features) for x in (support, query))
        return -squared_distances(query, support.mean(2))


def transformed(network: FewShotNetwork, features: Tensor, transform: Transform) -> Tensor:
    """Features ``(..., D)``, transformed.

    >>> from torch import nn, tensor
    >>> network = FewShotNetwork(nn.Flatten(), (2, 1, 1))
    >>> network.base_mean = tensor([1.0, 2.0])
    >>> transformed(network, tensor([[4.0, 6.0]]), "cl2n")
    tensor([[0.6000, 0.8000]])
    """
    if transform == "cl2n":
        if network.base_mean is None:
            raise RunError(
                "transformed: expected the mean feature of the base images for 'cl2n', got none. "
                "It is subtracted from all features. Set network.base_mean to mean_feature(...) of "
                "the base classes, or use 'l2n'."
            )
        features = features - network.base_mean.to(features)
    return features if transform == "un" else F.normalize(features, dim=-1)
