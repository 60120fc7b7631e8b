"""Global similarity (Appendix B): a convolution after a similarity of the whole map."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from torch import Tensor, nn

from .. import _check, structures
from .._shapes import pair, same_padding
from ..errors import ShapeError
from ..structures import Structure
from .layer_hooks import accept_missing_similarity
from .positions import (
    PlainAttention,
    PositionSimilarity,
    PredictedMask,
    SelfAttention2d,
    StaticPositions,
)
from .predictors import PatchConfig, PredictorConfig

__all__ = ["GlobalSimilarityConv2d"]

_ATTENTION = ("attention", "plain_attention")


class GlobalSimilarityConv2d(nn.Conv2d):
    r"""``nn.Conv2d`` of a map whose positions are first mixed: :math:`W_G^\top M_G X_F`.

    This is the global similarity of `Liu et al., 2019, Appendix B
    <https://arxiv.org/abs/1910.13003>`_. The layer has stride 1 and keeps the size of the map, so
    ``padding`` can be left out. ``weight`` and ``bias`` keep their stock keys, so a checkpoint of
    a plain convolution loads.

    ======================================  ====================================================
    given                                   M_G
    ======================================  ====================================================
    ``structure="diagonal", size=(H, W)``   a learned mask over the map (resized for other sizes)
    another of ``ns.structures``, ``size``  a learned L × L matrix, L = H·W, only for this size;
                                            ``"unconstrained"`` is any matrix
    ``"diagonal", predictor=...``           a mask predicted from the map
    ``"attention"``                         softmax self-attention with gain (the default)
    ``"plain_attention"``                   ``G1(X) G2(X)ᵀ``, the appendix's equation
    ======================================  ====================================================

    All but three start as the plain convolution: ``"dilated"``, and ``"sparse"`` with fewer than
    one entry per row, remove positions by definition, and the M of ``"plain_attention"`` has rank
    at most C and is quadratic in the input, so no choice of parameters makes it the identity.

    Args:
        structure: as above, by name or as a structure object.
        size: the map's height and width, for a static similarity.
        predictor: :class:`SpherePredictor`, :class:`ConvPredictor`, or any module
            ``(input, window) -> (N, 1, H, W)``, for a dynamic mask.
        width: channels of query and key for ``"attention"``; None means C/8.

    The other arguments are :class:`torch.nn.Conv2d`'s. For costs see
    :func:`~neural_similarity.ops.global_similarity_conv2d` and
    :func:`~neural_similarity.ops.position_attention`.

    Example:
        >>> conv = GlobalSimilarityConv2d(16, 8, 3, structure="attention")
        >>> plain = nn.Conv2d(16, 8, 3, padding=1)
        >>> _ = conv.load_state_dict(plain.state_dict())       # stock keys
        >>> import torch
        >>> image = torch.randn(2, 16, 10, 7)
        >>> torch.allclose(conv(image), plain(image), atol=1e-6)
        True
    """

    stock_class: ClassVar[type[nn.Module]] = nn.Conv2d
    similarity: PositionSimilarity

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, int],
        stride: int | tuple[int, int] = 1,
        padding: int | tuple[int, int] | str = "same",
        dilation: int | tuple[int, int] = 1,
        *args: Any,
        structure: str | Structure = "attention",
        size: int | Sequence[int] | None = None,
        predictor: PredictorConfig | nn.Module | None = None,
        width: int | None = None,
        **kwargs: Any,
    ) -> None:
        where = type(self).__name__
        kernel, dilated = pair(kernel_size), pair(dilation)
        _check.odd_kernel(where, kernel)
        keep = (same_padding(kernel[0], dilated[0])[0], same_padding(kernel[1], dilated[1])[0])
        if isinstance(padding, str):
            _check.known_name(where, "padding", padding, ("same",))
            padding = keep
        _check.size_preserving(where, pair(stride), pair(padding), keep)
        name = structure if isinstance(structure, str) else structure.name
        _check.known_name(where, "structure", name, (*structures.list_structures(), *_ATTENTION))
        _check_options(where, name, size, predictor, width)
        super().__init__(in_channels, out_channels, kernel, 1, keep, dilated, *args, **kwargs)
        similarity: PositionSimilarity
        if name == "attention":
            similarity = SelfAttention2d(in_channels, width)
        elif name == "plain_attention":
            similarity = PlainAttention(in_channels)
        elif predictor is not None:
            similarity = PredictedMask(in_channels, kernel, dilated, predictor)
        else:
            assert size is not None
            similarity = StaticPositions(structures.resolve(structure, where), pair(size), where)
        self.similarity = similarity.to(self.weight.device, self.weight.dtype)
        accept_missing_similarity(self)

    def similarity_children(self) -> dict[str, nn.Module]:
        """What a checkpoint of the stock layer lacks, by name."""
        return {"similarity": self.similarity}

    def forward(self, input: Tensor) -> Tensor:
        if input.dim() == 3:
            return self.forward(input[None])[0]
        _check.layer_input(type(self).__name__, input, self.in_channels)
        output: Tensor = self._conv_forward(self.similarity(input), self.weight, self.bias)
        return output


def _check_options(
    where: str, structure: str, size: object, predictor: object, width: int | None
) -> None:
    """Raise if an option does not belong to the structure: it would have no effect."""
    if width is not None and structure != "attention":
        raise ShapeError(
            f"{where}: expected no width for structure {structure!r}, got {width}. It is the width "
            f"of query and key in 'attention'. Leave width out."
        )
    if width is not None:
        _check.attention_width(where, width)
    if structure in _ATTENTION:
        for what, value in (("size", size), ("predictor", predictor)):
            if value is not None:
                raise ShapeError(
                    f"{where}: expected no {what} for structure {structure!r}, got {value!r}. "
                    f"Attention computes its matrix from the map itself. Leave {what} out."
                )
    elif predictor is not None and (structure != "diagonal" or size is not None):
        raise ShapeError(
            f"{where}: expected a predictor with structure 'diagonal' and no size, got structure "
            f"{structure!r} and size {size}. A predictor predicts one parameter at each position "
            f"of any map. To predict a matrix from the input, use 'attention'."
        )
    elif isinstance(predictor, PredictorConfig) and not isinstance(predictor, PatchConfig):
        raise ShapeError(
            f"{where}: expected predictor to be a PatchPredictor or ConvPredictor, got "
            f"{predictor!r}. A mask is predicted from the patch around each position."
        )
    elif predictor is None and size is None:
        raise ShapeError(
            f"{where}: expected size=(H, W) for structure {structure!r}, got None. A static "
            f"similarity has parameters for every position. Give the size of the map"
            + (", or a predictor for a dynamic one." if structure == "diagonal" else ".")
        )
