"""What several layers of the family do with the windows of a convolution."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from ... import _check
from ..._shapes import output_size, pair
from ...ops import pair_similarity, similarity_conv2d
from ..predictors import Window, centre_pixels

__all__ = ["Windows", "centres", "gaussian_similarity", "inside", "weighted_sum"]


class Windows(NamedTuple):
    """Size and position of the windows, as in a convolution; zeros around the image."""

    kernel_size: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)

    @classmethod
    def checked(
        cls,
        where: str,
        kernel_size: int | tuple[int, int],
        stride: int | tuple[int, int] = 1,
        padding: int | tuple[int, int] | None = None,
        dilation: int | tuple[int, int] = 1,
    ) -> Windows:
        """Windows with a central tap; without a padding, the first centre is the first pixel."""
        kernel, steps, spread = pair(kernel_size), pair(stride), pair(dilation)
        _check.odd_kernel(where, kernel)
        for axis in range(2):
            _check.whole_numbers(where, stride=steps[axis], dilation=spread[axis])
        if padding is None:
            padding = (spread[0] * (kernel[0] // 2), spread[1] * (kernel[1] // 2))
        for zeros in pair(padding):
            _check.counts(where, padding=zeros)
        return cls(kernel, steps, pair(padding), spread)

    @property
    def taps(self) -> int:
        return self.kernel_size[0] * self.kernel_size[1]

    def describe(self) -> str:
        """For ``extra_repr``: the settings, as ``nn.Conv2d`` prints them."""
        return ", ".join(f"{name}={value}" for name, value in self._asdict().items())


def centres(image: Tensor, windows: Windows) -> Tensor:
    """The pixel under the central tap of each window: ``(N, C, H, W)`` to ``(N, C, P, Q)``."""
    return centre_pixels(image, windows.kernel_size, Window(*windows[1:]))


def inside(image: Tensor, windows: Windows) -> Tensor:
    """One for every tap that lies in the image, zero for the others: ``(1, K, P, Q)``."""
    ones = image.new_ones(1, 1, *image.shape[2:])
    P, Q = map(output_size, image.shape[2:], *windows)
    return pair_similarity(image.new_ones(1, 1, P, Q), ones, *windows)


def gaussian_similarity(guide: Tensor, windows: Windows) -> Tensor:
    """``exp(−½ ‖f[l] − f[l+i]‖²)`` of a guide f: ``(N, D, H, W)`` to ``(N, K, P, Q)``."""
    return pair_similarity(centres(guide, windows), guide, *windows, kernel="gaussian")


def weighted_sum(
    input: Tensor,
    similarity: Tensor,
    windows: Windows,
    groups: int = 1,
    kernel: Tensor | None = None,
) -> Tensor:
    """``Σ_i W_i M_i X_i``, channel by channel, with one ``kernel`` W for all; None means ones.

    ``groups`` is the number of groups of channels that have their own similarity.
    """
    channels = input.shape[1]
    if kernel is None:
        kernel = input.new_ones(windows.kernel_size)
    kernels = kernel.expand(channels, 1, *windows.kernel_size)
    return similarity_conv2d(
        input, kernels, similarity, None, *windows[1:], groups=channels, similarity_groups=groups
    )
