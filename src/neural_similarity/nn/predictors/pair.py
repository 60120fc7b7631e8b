"""M from pairs of pixels: the centre of the window with each tap, in the input or in a guide."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar

import torch
from torch import Tensor, nn

from ... import _check
from ...errors import ShapeError
from ...ops import pair_similarity
from ...ops.pair_similarity import PAIR_KERNELS, PairKernel
from ...structures import Structure
from ..spans import Span
from .base import PredictorConfig, PredictorNetwork
from .windows import Window, centre_pixels

__all__ = ["PairNetwork", "PairPredictor"]


@dataclass(frozen=True)
class PairPredictor(PredictorConfig):
    r"""A diagonal M at every position, from pairs of its centre and each tap.

    .. math:: M_{n,i,l} = 1 + \gamma \, k(f_{n,c(l)}, f_{n,l+i}), \qquad
        k(f, g) = \langle f, g \rangle \;\text{or}\; \exp(-\tfrac12 \| f - g \|^2)

    with sample n, tap i, output position l, the pixel c(l) in the middle of its window (as in
    :class:`PixelPredictor`), the pixel l + i under tap i, and f the input or the guide after a 1×1
    convolution, zero outside the image. The gain :math:`\gamma` starts at 0, where the layer is the
    plain one. `Pixel-adaptive convolution <https://arxiv.org/abs/1904.05373>`_ is the Gaussian and
    `stand-alone self-attention <https://arxiv.org/abs/1906.05909>`_ the softmax of dot products,
    both with ``residual=False``.

    The layer needs ``over="taps"`` and a diagonal. Each of its ``similarity_groups`` compares its
    own share of the channels of f (a head).

    Args:
        channels: of f, in all groups together; None leaves the 1×1 convolution out.
        kernel: ``"dot"`` or ``"gaussian"``.
        softmax: make the pairs of a position sum to one over the taps.
        guide_channels: how many channels the guide has: the second input of the layer, as large as
            the first. None means that f comes from the input, and there is no guide.
        residual: False leaves out identity and gain: M is the pairs themselves.

    Cost in multiply-adds: ``C·channels`` per pixel, and ``K·channels`` per output position.

    Example:
        >>> import neural_similarity as ns
        >>> predictor = PairPredictor(kernel="gaussian", guide_channels=3)
        >>> conv = ns.nn.DynamicConv2d(4, 8, 3, padding=1, predictor=predictor)
        >>> conv(torch.randn(2, 4, 9, 9), torch.randn(2, 3, 9, 9)).shape
        torch.Size([2, 8, 9, 9])
    """

    channels: int | None = 8
    kernel: PairKernel = "dot"
    softmax: bool = False
    guide_channels: int | None = None
    residual: bool = True

    kind: ClassVar[str] = "pair"
    source: ClassVar[str] = "pairs"

    def __post_init__(self) -> None:
        _check.known_name("PairPredictor", "kernel", self.kernel, PAIR_KERNELS)
        _check.true_or_false("PairPredictor", softmax=self.softmax, residual=self.residual)
        for name in ("channels", "guide_channels"):
            if (value := getattr(self, name)) is not None:
                _check.whole_numbers("PairPredictor", **{name: value})
                object.__setattr__(self, name, _check.plain_number(value))

    def check(self, structure: Structure, span: Span, where: str) -> None:
        if span.over != "taps" or structure.predicted.name != "diagonal":
            raise ShapeError(
                f"{where}: expected over='taps' and structure 'diagonal' with PairPredictor, got "
                f"over={span.over!r} and {structure.label!r}. A pair gives one factor for each tap."
            )

    def network(
        self, channels: int, outputs: int, kernel_size: tuple[int, int] | None
    ) -> PairNetwork:
        assert kernel_size is not None
        return PairNetwork(self, channels, outputs // prod(kernel_size), kernel_size)


class PairNetwork(PredictorNetwork):
    """A 1×1 convolution, pairs, and a gain that starts at 0."""

    config: PairPredictor

    def __init__(
        self, config: PairPredictor, channels: int, groups: int, kernel_size: tuple[int, int]
    ) -> None:
        super().__init__()
        self.config, self.groups, self.kernel_size = config, groups, kernel_size
        self.source_channels = config.guide_channels or channels
        self.width = config.channels or self.source_channels
        if self.width % groups:
            raise ShapeError(
                f"PairPredictor: expected similarity_groups to divide the {self.width} channels "
                f"that are compared, got {groups}. Each group compares its own channels. Change "
                f"channels or similarity_groups."
            )
        self.embedding: nn.Module = nn.Identity()
        if config.channels is not None:
            self.embedding = nn.Conv2d(self.source_channels, self.width, 1, bias=False)
        self.gain = nn.Parameter(torch.zeros(())) if config.residual else None

    @property
    def takes_guide(self) -> bool:  # type: ignore[override]
        return self.config.guide_channels is not None

    def reset_parameters(self) -> None:
        """Reset the gain; the convolution has its own method."""
        if self.gain is not None:
            nn.init.zeros_(self.gain)

    def forward(self, input: Tensor, window: Window, guide: Tensor | None = None) -> Tensor:
        """``(N, C, H, W)`` and perhaps a guide of this size to ``(N, S·K, P, Q)``."""
        features: Tensor = self.embedding(self._source(input, guide))
        centres = centre_pixels(features, self.kernel_size, window)
        pairs = pair_similarity(
            *(centres, features, self.kernel_size, *window),
            kernel=self.config.kernel,
            groups=self.groups,
        )
        if self.config.softmax:
            pairs = pairs.unflatten(1, (self.groups, -1)).softmax(2).flatten(1, 2)
        return pairs if self.gain is None else self.gain * pairs

    def _source(self, input: Tensor, guide: Tensor | None) -> Tensor:
        if not self.takes_guide:
            return input
        if guide is None or guide.shape[1] != self.source_channels:
            got = "none" if guide is None else f"one with {guide.shape[1]}"
            raise ShapeError(
                f"predictor: expected a guide with {self.source_channels} channels, got {got}. The "
                f"predictor has guide_channels={self.config.guide_channels}. Call the layer as "
                f"layer(input, guide)."
            )
        return guide

    def early_layers(self, gains: bool) -> list[nn.Module]:
        return [self.embedding] if gains and self.gain is not None else []
