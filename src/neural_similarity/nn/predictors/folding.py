r"""BatchNorm of a predictor in evaluation mode, folded into the convolutions.

Then BatchNorm is :math:`y = s x + t` in each channel. So :math:`s (w * x) / \|x\| + t` is a
convolution with the weight :math:`s w`: scaling commutes with division by the patch's length.
"""

from __future__ import annotations

from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...ops.folded_predictor import FoldedLayer, folded_layer, folded_predictor, unchanged
from ...ops.modes import exported, immediate
from ...ops.sphere import sphere_conv2d
from ..plain_calls import called_plainly
from .patch_layers import only_weights_matter
from .windows import Window

__all__ = ["folded_layers", "kept_layers"]

Layers = tuple[nn.Module, nn.Module, nn.Module, nn.Module]
"""Two convolutions without bias, each with its normalisation."""


class _Folded(NamedTuple):
    """Two layers, and copies of what they were computed from."""

    first: FoldedLayer
    last: FoldedLayer
    norm_eps: tuple[float, float]
    copies: list[Tensor]


_KEPT: WeakKeyDictionary[nn.Module, _Folded] = WeakKeyDictionary()


def folded_layers(
    owner: nn.Module, layers: Layers, input: Tensor, window: Window, sphere: bool
) -> Tensor | None:
    """Two convolutions with BatchNorm, ReLU between them; None if needed separately.

    With ``sphere`` the first divides by the length of the patch.
    """
    if exported():
        foldable = _can_be_folded(layers) and input.dim() == 4
        return _exported(layers, input, window, sphere) if foldable else None
    folded = kept_layers(owner, layers, input)
    return None if folded is None else folded_predictor(input, *folded, window, sphere)


def kept_layers(
    owner: nn.Module, layers: Layers, *operands: Tensor
) -> tuple[FoldedLayer, FoldedLayer] | None:
    """Two convolutions with their BatchNorm folded in; None if needed separately.

    The folded weights are kept for the next call of their ``owner``, outside its state. They are
    small, so each call compares what they were computed from with copies, and no change can be
    missed. ``operands`` are what they will be used with, an image first.
    """
    if not _can_be_folded(layers) or operands[0].dim() != 4:
        return None
    sources = _sources(layers)
    if sources is None or not immediate(*operands, *sources):
        return None
    dtype = operands[0].dtype
    if not all(t.dtype is dtype and t.is_cpu for t in (*operands, *sources)):
        return None
    folded = _KEPT.get(owner)
    if folded is None or not _is_current(folded, layers, sources):
        folded = _KEPT[owner] = _fold(layers, sources)
    return folded.first, folded.last


def _can_be_folded(layers: Layers) -> bool:
    first, first_norm, last, last_norm = layers
    norms_scale = _only_scales(first_norm) and _only_scales(last_norm)
    return norms_scale and only_weights_matter(first, last)


def _only_scales(norm: nn.Module) -> bool:
    """Whether this is a plain BatchNorm in evaluation mode, without hooks."""
    return type(norm) is nn.BatchNorm2d and not norm.training and called_plainly(norm)


def _sources(layers: Layers) -> list[Tensor] | None:
    """What folded weights depend on; None where something is missing or scaling is not exact."""
    sources = [
        part
        for convolution, norm in (layers[:2], layers[2:])
        for part in (
            convolution._parameters.get("weight"),
            norm._parameters.get("weight"),
            norm._parameters.get("bias"),
            norm._buffers.get("running_mean"),
            norm._buffers.get("running_var"),
        )
        if part is not None
    ]
    return sources if len(sources) == 10 and sources[0].dtype.itemsize >= 4 else None


def _is_current(folded: _Folded, layers: Layers, sources: list[Tensor]) -> bool:
    """Whether nothing has changed since the weights were folded."""
    same = folded.norm_eps == _norm_eps(layers) and folded.copies[0].dtype == sources[0].dtype
    return same and unchanged(folded.copies, sources)


def _fold(layers: Layers, sources: list[Tensor]) -> _Folded:
    with torch.inference_mode(False), torch.no_grad():
        first, last = folded_layer(*_scaled(*layers[:2])), folded_layer(*_scaled(*layers[2:]))
        copies = [source.clone() for source in sources]
    return _Folded(first, last, _norm_eps(layers), copies)


def _norm_eps(layers: Layers) -> tuple[Any, Any]:
    return layers[1].eps, layers[3].eps


def _scaled(convolution: nn.Module, norm: Any) -> tuple[Tensor, Tensor]:
    """Weight and bias of a convolution that includes its BatchNorm."""
    weight: Any = convolution.weight
    scale = norm.weight * (norm.running_var + norm.eps).rsqrt()
    return weight * scale[:, None, None, None], norm.bias - norm.running_mean * scale


def _exported(layers: Layers, input: Tensor, window: Window, sphere: bool) -> Tensor:
    """The same in operations that the exporter folds into constants where it can."""
    weight, shift = _scaled(*layers[:2])
    if sphere:
        hidden = sphere_conv2d(input, weight, shift, *window, normalize="input")
    else:
        hidden = F.conv2d(input, weight, shift, *window)
    weight, shift = _scaled(*layers[2:])
    keep_size = (weight.shape[2] // 2, weight.shape[3] // 2)
    return F.conv2d(hidden.relu(), weight, shift, 1, keep_size)
