"""The similarities M_G between the positions of a map (Appendix B): modules that compute M_G X."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import _check, structures
from .._shapes import same_padding
from ..errors import ResizedMaskWarning, ShapeError
from ..ops import mix_positions, position_attention
from ..structures import Block, Dilated, KernelShape, Structure
from .dynamic import PredictedSimilarity
from .predictors import PredictorConfig, Window
from .structure_parameters import structure_parameters

__all__ = [
    "PlainAttention",
    "PositionSimilarity",
    "PredictedMask",
    "SelfAttention2d",
    "StaticPositions",
]

_MOST_PARAMETERS = 2**24  # 64 MB in float32, as for static similarities


class PositionSimilarity(nn.Module):
    """A similarity between positions. ``forward`` returns M_G X, in the shape of its input."""

    def similarity(self, input: Tensor) -> Tensor:
        """M for this input, in a shape for :func:`~neural_similarity.ops.mix_positions`."""
        raise NotImplementedError

    def forward(self, input: Tensor) -> Tensor:
        return mix_positions(input, self.similarity(input))


class StaticPositions(PositionSimilarity):
    """A learned M for maps of one size, with any of ``ns.structures``; a block is the whole map.

    A diagonal is a mask over the map. On a map of another size it is resized bilinearly, with one
    warning. Matrices, ``dilated`` and ``kernel_shape`` refuse maps of another size: a resized mask
    would not have their form.
    """

    def __init__(self, structure: Structure, size: tuple[int, int], where: str) -> None:
        super().__init__()
        self.structure, self.size, self.where = structure, size, where
        self.block = Block(size)
        self.has_warned = False
        if min(size) < 1:
            raise ShapeError(f"{where}: expected a size of at least (1, 1), got {size}.")
        most = structure.most_parameters(self.block)
        if most > _MOST_PARAMETERS:
            raise ShapeError(
                f"{where}: expected a similarity of at most {_MOST_PARAMETERS:,} parameters, got "
                f"up to {most:,} for structure {structure.name!r} and size {size}. Their number "
                f"grows with the square of the number of positions. Use a smaller map, 'diagonal', "
                f"or 'attention'."
            )
        structure.check(self.block, where)
        self.numbers = structure_parameters(structure, self.block)

    def reset_parameters(self) -> None:
        """Return to the structure's initial values."""
        self.structure.reset(dict(self.numbers.items()), self.block)

    def similarity(self, input: Tensor) -> Tensor:
        M = self.structure.similarity(dict(self.numbers.items()), self.block)
        size = (input.shape[-2], input.shape[-1])
        if isinstance(self.structure, Dilated | KernelShape) or M.dim() == 2:
            _check.map_size(self.where, size, self.size, self.structure.name)
        if M.dim() == 2:
            return M
        mask = M.reshape(self.size)
        if size == self.size:
            return mask
        self._warn(size)
        return F.interpolate(mask[None, None], size, mode="bilinear", align_corners=False)[0, 0]

    def _warn(self, size: tuple[int, int]) -> None:
        if self.has_warned or torch.compiler.is_compiling():
            return
        self.has_warned = True
        warnings.warn(
            f"{self.where}: expected a map of {self.size}, got {size}. The mask is resized "
            f"bilinearly. This warning appears only once. Create the layer with size={size} to "
            f"learn a mask of this size.",
            ResizedMaskWarning,
            stacklevel=2,
        )

    def extra_repr(self) -> str:
        return f"structure={self.structure!r}, size={self.size}"


class PredictedMask(PositionSimilarity):
    """A mask predicted from the map itself: a dynamic diagonal.

    It is the predictor of local similarities, with one parameter at each position instead of K. It
    has the kernel size of the convolution it serves, with zeros around the map.
    """

    def __init__(
        self,
        channels: int,
        kernel_size: tuple[int, int],
        dilation: tuple[int, int],
        predictor: PredictorConfig | nn.Module,
    ) -> None:
        super().__init__()
        structure = structures.Diagonal()
        high, wide = (same_padding(k, d)[0] for k, d in zip(kernel_size, dilation, strict=True))
        self.window = Window((1, 1), (high, wide), dilation)
        residual = True
        if isinstance(predictor, PredictorConfig):
            config, residual = predictor.for_structure(structure), predictor.residual
            predictor = config.network(channels, 1, kernel_size)
        self.predictor = PredictedSimilarity(predictor, structure, Block((1,)), residual)

    def similarity(self, input: Tensor) -> Tensor:
        mask: Tensor = self.predictor(input, self.window)
        return mask.squeeze(1)


class PlainAttention(PositionSimilarity):
    r"""Self-attention as the appendix writes it: :math:`M = G_1(X) G_2(X)^\top`.

    G1 and G2 are 1×1 convolutions to as many channels as the map has. Nothing bounds M: it grows
    with the square of the input and its sum with the number of positions. It is of rank C at most
    and therefore cannot begin at the identity.

    Cost in multiply-adds per sample, with L positions: ``4·L·C²``.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.query = nn.Conv2d(channels, channels, 1, bias=False)
        self.key = nn.Conv2d(channels, channels, 1, bias=False)

    def similarity(self, input: Tensor) -> Tensor:
        return torch.bmm(self.query(input).flatten(2).mT, self.key(input).flatten(2))

    def forward(self, input: Tensor) -> Tensor:
        return position_attention(self.query(input), self.key(input), input, softmax=False)


class SelfAttention2d(PositionSimilarity):
    r"""Self-attention as it is commonly used: softmax, a narrow query and key, a learned gain.

    As in `SAGAN (Zhang et al., 2018) <https://arxiv.org/abs/1805.08318>`_.

    .. math:: z = X + \gamma \, A \, V(X), \qquad A = \mathrm{softmax}(G_1(X) G_2(X)^\top)

    with 1×1 convolutions G1, G2 (C to C/8 channels) and V, and a gain γ that starts at 0, where
    the layer is the identity. If V is linear, M_G is :math:`I + \gamma \, V \otimes A`: V mixes
    channels, so it is no longer block-diagonal.

    Args:
        channels: C of the map.
        width: channels of query and key; None means C/8, at least one.
        conv_layer: makes the three convolutions, for example ``SphereConv2d``.
        query_relu: put a ReLU after the query, as the authors' code does.

    Cost in multiply-adds per sample, with L positions: ``2·L²·C``, and ``1.25·L·C²`` for the
    convolutions. Memory grows with L.

    Example:
        >>> attention = SelfAttention2d(16)
        >>> image = torch.randn(2, 16, 8, 8)
        >>> torch.equal(attention(image), image)
        True
    """

    def __init__(
        self,
        channels: int,
        width: int | None = None,
        conv_layer: Callable[..., nn.Module] = nn.Conv2d,
        query_relu: bool = False,
    ) -> None:
        super().__init__()
        self.query_relu = query_relu
        width = max(1, channels // 8) if width is None else width
        _check.attention_width("SelfAttention2d", width)
        self.query = conv_layer(channels, width, 1, bias=False)
        self.key = conv_layer(channels, width, 1, bias=False)
        self.value = conv_layer(channels, channels, 1, bias=False)
        self.gain = nn.Parameter(torch.zeros(()))

    def reset_parameters(self) -> None:
        """Reset the gain; the convolutions have their own method."""
        nn.init.zeros_(self.gain)

    def similarity(self, input: Tensor) -> Tensor:
        """A alone: ``(N, L, L)``, each row a distribution over positions."""
        scores = torch.bmm(self._query(input).flatten(2).mT, self.key(input).flatten(2))
        return scores.softmax(-1)

    def forward(self, input: Tensor) -> Tensor:
        if input.dim() == 3:
            return self.forward(input[None])[0]
        attended = position_attention(self._query(input), self.key(input), self.value(input))
        return input + self.gain * attended

    def _query(self, input: Tensor) -> Tensor:
        query: Tensor = self.query(input)
        return query.relu() if self.query_relu else query
