"""The spatial transformer (Jaderberg et al., 2015): a similarity between positions."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ... import _check
from ...errors import ShapeError
from ..positions import PositionSimilarity

__all__ = ["SpatialTransformer2d"]


class SpatialTransformer2d(PositionSimilarity):
    r"""The spatial transformer: the image decides where each of its positions is sampled.

    From `Jaderberg et al., 2015 <https://arxiv.org/abs/1506.02025>`_.

    .. math:: y_{n,c,l} = \sum_j M_{n,l,j} \, x_{n,c,j}, \qquad
        M_{n,l,j} = \max(0, 1 - |u_{n,l} - u_j|) \, \max(0, 1 - |v_{n,l} - v_j|)

    with sample n, channel c, positions l and j, :math:`(u_j, v_j)` the row and column of j, and
    :math:`(u_{n,l}, v_{n,l})` the place that the affine map :math:`\theta_n` sends l to.

    **M is** that global matrix of bilinear weights: a row has at most four entries, and outside the
    image there are zeros. There is no W: a convolution may follow, as in
    :class:`~neural_similarity.nn.GlobalSimilarityConv2d`.

    Args:
        localisation: a module that maps ``(N, C, H, W)`` to θ, ``(N, 6)`` or ``(N, 2, 3)``, row by
            row: ``(x, y) = θ (x', y', 1)`` with coordinates from −1 to 1 at the edges of the image
            (``align_corners=False``). Let it start at the identity, ``(1, 0, 0, 0, 1, 0)``.

    Cost in multiply-adds per position: ``4·C``, six for the place, and the localisation network.
    The matrix is never formed, except by ``similarity``.

    Example:
        >>> place = nn.Linear(3, 6)
        >>> _ = nn.init.zeros_(place.weight)
        >>> _ = place.bias.data.copy_(torch.tensor([1.0, 0, 0, 0, 1, 0]))
        >>> pooled = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), place)
        >>> transformer, image = SpatialTransformer2d(pooled), torch.randn(2, 3, 8, 7)
        >>> torch.allclose(transformer(image), image, atol=1e-5)
        True
    """

    def __init__(self, localisation: nn.Module) -> None:
        super().__init__()
        self.localisation = localisation

    def similarity(self, input: Tensor) -> Tensor:
        """M as a matrix, ``(N, L, L)``."""
        _check.image_batch(self, input)
        H, W = input.shape[2:]
        x, y = self._grid(input).flatten(1, 2).unbind(-1)
        rows = _nearness(((y + 1) * H - 1) / 2, H)
        columns = _nearness(((x + 1) * W - 1) / 2, W)
        return (rows[..., None] * columns[:, :, None]).flatten(2)

    def forward(self, input: Tensor) -> Tensor:
        if input.dim() == 3:
            return self.forward(input[None])[0]
        _check.layer_input(type(self).__name__, input)
        if input.shape[0] == 0:  # PyTorch's grid needs an image
            return input
        grid = self._grid(input)
        return F.grid_sample(input.to(grid), grid, align_corners=False).to(input.dtype)

    def _grid(self, input: Tensor) -> Tensor:
        """The places, in float32 at least: bfloat16 cannot tell the pixels of a row apart."""
        theta: Tensor = self.localisation(input)
        N = input.shape[0]
        if tuple(theta.shape) not in ((N, 6), (N, 2, 3)):
            raise ShapeError(
                f"{type(self).__name__}: expected localisation to return {(N, 6)} or {(N, 2, 3)}, "
                f"got {_check.shape(theta)}. An affine map has six parameters for each image."
            )
        # As F.affine_grid, which compiles for one size of the batch alone.
        theta = theta.to(torch.promote_types(input.dtype, torch.float32))
        y, x = (_centres(size, theta) for size in input.shape[2:])
        of_x, of_y, shift = theta.reshape(N, 2, 1, 1, 3).unbind(-1)
        return (of_x * x + of_y * y[:, None] + shift).movedim(1, -1)


def _centres(size: int, like: Tensor) -> Tensor:
    """The centres of an axis' pixels, whose edges are −1 and 1."""
    pixels = torch.arange(size, dtype=like.dtype, device=like.device)
    return (2 * pixels + 1) / size - 1


def _nearness(places: Tensor, size: int) -> Tensor:
    """``max(0, 1 − |place − pixel|)`` for every pixel of an axis, ``(N, L, size)``."""
    pixels = torch.arange(size, dtype=places.dtype, device=places.device)
    return (1 - (places[..., None] - pixels).abs()).clamp(min=0)
