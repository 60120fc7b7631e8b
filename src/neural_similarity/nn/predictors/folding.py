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

__all__ = ["folded_layers", "forget"]

Layers = tuple[nn.Module, nn.Module, nn.Module, nn.Module]
"""Two convolutions without bias, each with what normalises its output."""


class _Source(NamedTuple):
    """A tensor that folded weights depend on, as it was then."""

    place: dict[str, Any]
    name: str
    tensor: Tensor
    version: int
    memory: Tensor  # kept, so that no other tensor gets the same address
    address: int


class _Folded(NamedTuple):
    """The weights of two layers, and what they were computed from."""

    first: Tensor
    first_shift: Tensor
    last: Tensor
    last_shift: Tensor
    ones: Tensor  # a window that sums
    eps: Tensor
    layers: Layers
    norm_eps: tuple[float, float]
    sources: list[_Source]


_KEPT: WeakKeyDictionary[nn.Module, _Folded] = WeakKeyDictionary()
_INTERNALS: Any = module_internals


def folded_layers(
    owner: nn.Module, layers: Layers, input: Tensor, window: Window, sphere: bool
) -> Tensor | None:
    """Two convolutions with BatchNorm, ReLU between them; None where these are needed apart.

    With ``sphere`` the first divides by the length of the patch. The folded weights are kept for
    the next call of their ``owner``, outside of its state. A change of a parameter or a buffer is
    noticed by the version that PyTorch counts. It does not count changes through ``.data``: call
    ``eval()`` after these.
    """
    if not (_only_scales(layers[1]) and _only_scales(layers[3])) or input.dim() != 4:
        return None
    if exported():
        return _exported(layers, input, window, sphere)
    if not immediate(input):
        return None
    folded = _KEPT.get(owner)
    if folded is None or not _is_current(folded, layers):
        if (folded := _fold(layers)) is None:
            return None
        _KEPT[owner] = folded
    if (input.dtype, input.device) != (folded.first.dtype, folded.first.device):
        return None
    if sphere:
        hidden = F.conv2d(input, folded.first, None, *window)
        lengths = torch.linalg.vector_norm(input, 2, 1, keepdim=True).square_()
        lengths = F.conv2d(lengths, folded.ones, folded.eps, *window)
        hidden = torch.addcmul(folded.first_shift[:, None, None], hidden, lengths.rsqrt_())
    else:
        hidden = F.conv2d(input, folded.first, folded.first_shift, *window)
    return _same_size(hidden.relu_(), folded.last, folded.last_shift)


def forget(owner: nn.Module) -> None:
    """Fold anew in the next call."""
    _KEPT.pop(owner, None)


def _only_scales(norm: nn.Module) -> bool:
    """Whether this is a plain BatchNorm in evaluation mode, whose call nobody waits for."""
    if type(norm) is not nn.BatchNorm2d or norm.training or "forward" in vars(norm):
        return False
    return not (norm._forward_hooks or norm._forward_pre_hooks or _INTERNALS._has_any_global_hook())


def _is_current(folded: _Folded, layers: Layers) -> bool:
    """Whether all is as it was when the weights were folded."""
    if folded.layers != layers or folded.norm_eps != _norm_eps(layers):
        return False
    for place, name, tensor, version, _, address in folded.sources:
        same = place.get(name) is tensor and tensor._version == version
        if not same or tensor.data_ptr() != address:
            return False
    return True


def _fold(layers: Layers) -> _Folded | None:
    """The folded weights, or None if a change of what they depend on would not be noticed."""
    sources = []
    for convolution, norm in (layers[:2], layers[2:]):
        for place, name in (
            (convolution._parameters, "weight"),
            (norm._parameters, "weight"),
            (norm._parameters, "bias"),
            (norm._buffers, "running_mean"),
            (norm._buffers, "running_var"),
            (norm._buffers, "num_batches_tracked"),  # the only one of them that BatchNorm counts
        ):
            tensor = place.get(name)
            if tensor is None or not immediate(tensor) or tensor.is_inference():
                return None
            memory = tensor.detach()
            sources.append(_Source(place, name, tensor, tensor._version, memory, tensor.data_ptr()))
    kinds = {(s.tensor.dtype, s.tensor.device) for s in sources if s.tensor.is_floating_point()}
    if len(kinds) > 1 or any(dtype.itemsize < 4 for dtype, _ in kinds):
        return None
    with torch.inference_mode(False), torch.no_grad():
        weights = (*_scaled(*layers[:2]), *_scaled(*layers[2:]))
        ones = torch.ones_like(weights[0][:1, :1])
        eps = torch.full_like(weights[1][:1], EPS)
    return _Folded(*weights, ones, eps, layers, _norm_eps(layers), sources)


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
