"""M from one pixel: two 1×1 convolutions, as in involution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor

from ... import _check
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
        pool: predict once for each square of ``pool`` × ``pool`` positions, from the average of
            their pixels. 1 predicts at every position.

    Cost in multiply-adds per output position: ``hidden·(C + parameters) / pool²``. For 32 channels,
    nine taps and 8 hidden units that is a thirtieth of a convolution to 32 channels.

    Example:
        >>> import torch
        >>> import neural_similarity as ns
        >>> conv = ns.nn.DynamicConv2d(4, 8, 3, stride=2, predictor=PixelPredictor(hidden=4))
        >>> conv.similarity(torch.randn(2, 4, 9, 9)).shape
        torch.Size([2, 9, 4, 4])
    """

    pool: int = 1

    kind: ClassVar[str] = "pixel"
    source: ClassVar[str] = "pixel"

    def __post_init__(self) -> None:
        super().__post_init__()
        _check.whole_numbers("PixelPredictor", pool=self.pool)
        object.__setattr__(self, "pool", _check.plain_number(self.pool))

    def network(
        self, channels: int, outputs: int, kernel_size: tuple[int, int] | None
    ) -> PointwiseLayers:
        return _PixelLayers(self, channels, outputs, kernel_size)


class _PixelLayers(PointwiseLayers):
    config: PixelPredictor

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
        pixels, pool = centre_pixels(input, self.kernel_size, window), self.config.pool
        if pool == 1:
            return self.predict(pixels)
        squares = F.avg_pool2d(pixels, pool, ceil_mode=True)  # those at the border are smaller
        predicted = F.interpolate(self.predict(squares), scale_factor=pool)
        return predicted[:, :, : pixels.shape[2], : pixels.shape[3]]
