"""M from one pixel: two 1×1 convolutions, as in involution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from .pointwise import PointwiseConfig, PointwiseLayers
from .windows import Window, centre_pixels

__all__ = ["PixelPredictor"]


@dataclass(frozen=True)
class PixelPredictor(PointwiseConfig):
    r"""M at every position from the pixel under the centre of its window.

    .. math:: z_{n,l} = V \, \mathrm{ReLU}(U \, x_{n,c(l)} + u) + v

    with the pixel :math:`x_{n,c(l)}` in the middle of the window of output position l, and zero
    outside the image. Without a middle tap (an even kernel) it is the pixel that ``padding="same"``
    puts there: the one before the middle. `Involution <https://arxiv.org/abs/2103.06255>`_
    predicts in this way.

    Args:
        hidden, gate, batch_norm, residual, start: as in :class:`ImagePredictor`.

    Cost in multiply-adds per output position: ``hidden·(C + parameters)``. For 32 channels, nine
    taps and 8 hidden units that is a thirtieth of a convolution to 32 channels.

    Example:
        >>> import torch
        >>> import neural_similarity as ns
        >>> conv = ns.nn.DynamicConv2d(4, 8, 3, stride=2, predictor=PixelPredictor(hidden=4))
        >>> conv.similarity(torch.randn(2, 4, 9, 9)).shape
        torch.Size([2, 9, 4, 4])
    """

    kind: ClassVar[str] = "pixel"
    source: ClassVar[str] = "pixel"

    def network(
        self, channels: int, outputs: int, kernel_size: tuple[int, int] | None
    ) -> PointwiseLayers:
        return _PixelLayers(self, channels, outputs, kernel_size)


class _PixelLayers(PointwiseLayers):
    def __init__(
        self,
        config: PixelPredictor,
        channels: int,
        outputs: int,
        kernel_size: tuple[int, int] | None,
    ) -> None:
        assert kernel_size is not None
        super().__init__(config, channels, outputs, maps=True)
        self.kernel_size = kernel_size

    def forward(self, input: Tensor, window: Window) -> Tensor:
        """``(N, C, H, W)`` to ``(N, outputs, P, Q)``."""
        return self.predict(centre_pixels(input, self.kernel_size, window))
