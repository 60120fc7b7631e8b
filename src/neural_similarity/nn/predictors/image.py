"""M from the whole image: its average, and two small matrices, as in squeeze-and-excitation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from ...ops.image_similarity import ImageSettings, can_fuse_image, fused_image_similarity
from ..plain_calls import called_plainly
from .pointwise import PointwiseConfig, PointwiseLayers
from .windows import Window

__all__ = ["ImageLayers", "ImagePredictor"]


@dataclass(frozen=True)
class ImagePredictor(PointwiseConfig):
    r"""One M per image, from the average of its pixels.

    .. math:: z_n = V \, \mathrm{ReLU}(U \bar x_n + u) + v, \qquad
        \bar x_n = \frac{1}{HW} \sum_l x_{n,l}

    The average is over the input as it is, before padding. With ``over="channels"`` this is
    `squeeze-and-excitation <https://arxiv.org/abs/1709.01507>`_ of a layer's input; over taps it is
    the spatial attention of `ODConv <https://openreview.net/forum?id=DmpCfq6Mg39>`_.

    Args:
        hidden: hidden units.
        gate: what is done to the prediction z: ``"none"``, identity + z; ``"tanh"``, 1 + tanh(z);
            ``"sigmoid"``, 2·sigmoid(z). Off the diagonal of a matrix, the 1 is left out.
        batch_norm: BatchNorm after the first layer. In training it needs batches of two or more.
        residual: False leaves the identity out and needs ``gate="none"``: M is z itself.
        start: ``"identity"``: the layer starts exactly as the plain one, because the last layer
            starts at zero. ``"random"``: PyTorch's usual weights.

    Cost in multiply-adds per image: ``hidden·(C + parameters)``, for any image size.

    Example:
        >>> import torch
        >>> import neural_similarity as ns
        >>> conv = ns.nn.DynamicConv2d(4, 8, 3, predictor=ImagePredictor(hidden=4))
        >>> conv.similarity(torch.randn(2, 4, 9, 9)).shape
        torch.Size([2, 9, 1, 1])
    """

    kind: ClassVar[str] = "image"
    source: ClassVar[str] = "image"

    def network(
        self, channels: int, outputs: int, kernel_size: tuple[int, int] | None
    ) -> PointwiseLayers:
        return ImageLayers(self, channels, outputs, maps=False)


class ImageLayers(PointwiseLayers):
    """The two layers of :class:`ImagePredictor`."""

    def forward(self, input: Tensor, window: Window) -> Tensor:
        """``(N, C, H, W)`` to ``(N, outputs, 1, 1)``."""
        return self.predict(input.mean((2, 3)))[:, :, None, None]

    def diagonal(
        self, input: Tensor, residual: bool, over: str, taps: int, outputs: int
    ) -> Tensor | None:
        """A diagonal M in one operation, or None where it must be computed step by step."""
        first, last = self.first, self.last
        if type(first) is not nn.Linear or type(last) is not nn.Linear:
            return None
        if first.bias is None or last.bias is None or last.out_features != outputs:
            return None
        if type(self.first_norm) is not nn.Identity or not called_plainly(
            self, first, self.first_norm, last
        ):
            return None
        operands = (input, first.weight, first.bias, last.weight, last.bias)
        if not can_fuse_image(*operands):
            return None
        settings = ImageSettings(self.config.gate, residual, over, taps)
        return fused_image_similarity(*operands, settings)
