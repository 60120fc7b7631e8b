r"""BatchNorm of a predictor in evaluation mode, as a part of the convolutions.

Then BatchNorm is :math:`y = s x + t` in each channel. So :math:`s (w * x) / \|x\| + t` is a
convolution with the weight :math:`s w`: the division by the length of the patch commutes.
"""

from __future__ import annotations

from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules import module as module_internals

from ...ops.modes import exported, immediate
from ...ops.sphere import EPS, sphere_conv2d
from .windows import Window

__all__ = ["folded_layers"]

Layers = tuple[nn.Module, nn.Module, nn.Module, nn.Module]
"""Two convolutions without bias, each with what normalises its output."""


class _Folded(NamedTuple):
    """The weights of two layers, and copies of what they were computed from."""

    first: Tensor
    first_shift: Tensor
    last: Tensor
    last_shift: Tensor
    ones: Tensor  # a window that sums
    eps: Tensor
    norm_eps: tuple[float, float]
    copies: list[Tensor]


_KEPT: WeakKeyDictionary[nn.Module, _Folded] = WeakKeyDictionary()
_INTERNALS: Any = module_internals


def folded_layers(
    owner: nn.Module, layers: Layers, input: Tensor, window: Window, sphere: bool
) -> Tensor | None:
    """Two convolutions with BatchNorm, ReLU between them; None where these are needed apart.

    With ``sphere`` the first divides by the length of the patch. The folded weights are kept for
    the next call of their ``owner``, outside of its state. They are small: in each call, what they
    were computed from is compared with copies, so that no change can be missed.
    """
    if not (_only_scales(layers[1]) and _only_scales(layers[3])) or input.dim() != 4:
        return None
    if exported():
        return _exported(layers, input, window, sphere)
    sources = _sources(layers)
    if sources is None or not immediate(input, *sources):
        return None
    if any((s.dtype, s.device) != (input.dtype, input.device) for s in sources):
        return None
    folded = _KEPT.get(owner)
    if folded is None or not _is_current(folded, layers, sources):
        folded = _KEPT[owner] = _fold(layers, sources)
    if sphere:
        hidden = F.conv2d(input, folded.first, None, *window)
        lengths = torch.linalg.vector_norm(input, 2, 1, keepdim=True).square_()
        lengths = F.conv2d(lengths, folded.ones, folded.eps, *window)
        hidden = torch.addcmul(folded.first_shift[:, None, None], hidden, lengths.rsqrt_())
    else:
        hidden = F.conv2d(input, folded.first, folded.first_shift, *window)
    return _same_size(hidden.relu_(), folded.last, folded.last_shift)


def _only_scales(norm: nn.Module) -> bool:
    """Whether this is a plain BatchNorm in evaluation mode, whose call nobody waits for."""
    if type(norm) is not nn.BatchNorm2d or norm.training or "forward" in vars(norm):
        return False
    return not (norm._forward_hooks or norm._forward_pre_hooks or _INTERNALS._has_any_global_hook())


def _sources(layers: Layers) -> list[Tensor] | None:
    """What folded weights depend on; None where comparing or scaling them is not exact or slow."""
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
    kept = len(sources) == 10 and sources[0].device.type == "cpu"
    return sources if kept and sources[0].dtype.itemsize >= 4 else None


def _is_current(folded: _Folded, layers: Layers, sources: list[Tensor]) -> bool:
    """Whether all is as it was when the weights were folded."""
    same = folded.norm_eps == _norm_eps(layers) and folded.first.dtype == sources[0].dtype
    return same and all(map(torch.equal, folded.copies, sources))


def _fold(layers: Layers, sources: list[Tensor]) -> _Folded:
    with torch.inference_mode(False), torch.no_grad():
        weights = (*_scaled(*layers[:2]), *_scaled(*layers[2:]))
        ones = torch.ones_like(weights[0][:1, :1])
        eps = torch.full_like(weights[1][:1], EPS)
        copies = [source.clone() for source in sources]
    return _Folded(*weights, ones, eps, _norm_eps(layers), copies)


def _norm_eps(layers: Layers) -> tuple[Any, Any]:
    return layers[1].eps, layers[3].eps


def _scaled(convolution: nn.Module, norm: Any) -> tuple[Tensor, Tensor]:
    """Weight and bias of a convolution that does the work of its BatchNorm too."""
    weight: Any = convolution.weight
    scale = norm.weight * (norm.running_var + norm.eps).rsqrt()
    return weight * scale[:, None, None, None], norm.bias - norm.running_mean * scale


def _exported(layers: Layers, input: Tensor, window: Window, sphere: bool) -> Tensor:
    """The same in operations that the exporter computes in advance as far as it can."""
    weight, shift = _scaled(*layers[:2])
    if sphere:
        hidden = sphere_conv2d(input, weight, shift, *window, normalize="input")
    else:
        hidden = F.conv2d(input, weight, shift, *window)
    return _same_size(hidden.relu(), *_scaled(*layers[2:]))


def _same_size(hidden: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.conv2d(hidden, weight, bias, 1, (weight.shape[2] // 2, weight.shape[3] // 2))
