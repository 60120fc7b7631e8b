"""The bilateral filter (Tomasi and Manduchi, 1998): smooth areas, sharp edges."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ... import _check
from .windows import Windows, gaussian_similarity, inside, weighted_sum

__all__ = ["BilateralFilter2d"]


class BilateralFilter2d(nn.Module):
    r"""The bilateral filter: a mean of the pixels that are near in space and in colour.

    From `Tomasi and Manduchi, 1998 <https://doi.org/10.1109/ICCV.1998.710815>`_.

    .. math:: y_{n,c,l} = \frac{\sum_i w_{n,i,l} \, X_{n,c,i,l}}{\sum_i w_{n,i,l}}, \qquad
        w_{n,i,l} = \exp\Bigl(-\frac{\|i\|^2}{2\sigma_s^2}
        - \frac{\|x_{n,l} - x_{n,l+i}\|^2}{2\sigma_c^2}\Bigr)

    with sample n, channel c, position l, tap i at distance ‖i‖ from the centre in pixels, l + i the
    pixel under it, and colour distances over all channels. The sums are over the taps inside the
    image. The size of the image does not change.

    **M is** :math:`\mathrm{diag}_i\, w_{n,i,l} / \sum_j w_{n,j,l}`, and W is depthwise, all ones.
    Nothing is learned.

    Args:
        kernel_size: odd.
        sigma_space: σ_s, in pixels.
        sigma_colour: σ_c, in the units of the image.

    ``forward(input, guide)`` compares the colours of another image (the joint bilateral filter).

    Cost in multiply-adds per position: ``2·K·C``.

    Example:
        >>> step = torch.tensor([0.0, 0.1, 0.0, 5.0, 5.1, 5.0]).expand(1, 1, 6, 6)
        >>> smooth = BilateralFilter2d(3, sigma_space=1.0, sigma_colour=0.5)(step)
        >>> [round(value, 2) for value in smooth[0, 0, 2].tolist()]    # the edge stays
        [0.04, 0.05, 0.04, 5.04, 5.05, 5.04]
    """

    def __init__(
        self, kernel_size: int | tuple[int, int], sigma_space: float, sigma_colour: float
    ) -> None:
        super().__init__()
        where = type(self).__name__
        _check.positive_numbers(where, sigma_space=sigma_space, sigma_colour=sigma_colour)
        self.windows = Windows.checked(where, kernel_size)
        self.sigma_space, self.sigma_colour = sigma_space, sigma_colour

    def similarity(self, guide: Tensor) -> Tensor:
        """M of a guide ``(N, D, H, W)``: ``(N, K, H, W)``; the entries at a position sum to one."""
        _check.image_batch(self, guide)
        similarity = gaussian_similarity(guide / self.sigma_colour, self.windows)
        nearness = self._nearness(guide).reshape(-1, 1, 1)
        similarity = similarity * (nearness * inside(guide, self.windows))
        return similarity / similarity.sum(1, keepdim=True)

    def forward(self, input: Tensor, guide: Tensor | None = None) -> Tensor:
        where = type(self).__name__
        if guide is None:
            guide = input
        if input.dim() == 3:
            _check.guide(where, input, guide)
            return self.forward(input[None], guide[None])[0]
        _check.layer_input(where, input)
        _check.guide(where, input, guide)
        # W holds the distances, and a channel of ones, zero outside the image, sums the weights, so
        # only the Gaussian of the colours is computed for every tap.
        colours = gaussian_similarity(guide / self.sigma_colour, self.windows)
        with_ones = torch.cat([input, torch.ones_like(input[:, :1])], 1)
        sums = weighted_sum(with_ones, colours, self.windows, kernel=self._nearness(guide))
        return sums[:, :-1] / sums[:, -1:]

    def _nearness(self, guide: Tensor) -> Tensor:
        """``exp(−‖i‖² / 2σ_s²)`` of every tap: ``(kh, kw)``."""
        rows, columns = (
            torch.arange(-(side // 2), side // 2 + 1, dtype=guide.dtype, device=guide.device)
            for side in self.windows.kernel_size
        )
        distance = rows[:, None].square() + columns.square()
        return (distance / (-2 * self.sigma_space**2)).exp()

    def extra_repr(self) -> str:
        sigmas = f"sigma_space={self.sigma_space}, sigma_colour={self.sigma_colour}"
        return f"kernel_size={self.windows.kernel_size}, {sigmas}"
