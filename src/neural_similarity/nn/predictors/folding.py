"""BatchNorm of a predictor in evaluation mode, as a part of the layer before it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...ops.sphere import sphere_conv2d
from .windows import Window

__all__ = ["can_fold", "folded_layers"]


def can_fold(*norms: nn.Module) -> bool:
    """Whether these are BatchNorms that now only scale and shift, and nobody needs them apart.

    Gradients, autocast and hooks need them apart.
    """
    if torch.is_grad_enabled() and not torch.onnx.is_in_onnx_export():
        return False
    if any(map(torch.is_autocast_enabled, ("cpu", "cuda"))):
        return False
    return all(
        type(norm) in (nn.BatchNorm1d, nn.BatchNorm2d)
        and not norm.training
        and norm.running_mean is not None
        and not (norm._forward_hooks or norm._forward_pre_hooks)
        for norm in norms
    )


def folded_layers(
    input: Tensor,
    first: nn.Conv2d,
    first_norm: nn.Module,
    last: nn.Conv2d,
    last_norm: nn.Module,
    window: Window,
    sphere: bool,
) -> Tensor:
    """Two convolutions, each with its BatchNorm, and ReLU between them.

    With ``sphere`` the first divides by the length of the patch. The division commutes with the
    scale. The products of weights and scales are small, so they are not kept: no change of a
    parameter can be missed.
    """
    weight, shift = _folded(first, first_norm)
    if sphere:
        hidden = sphere_conv2d(input, weight, shift, *window, normalize="input")
    else:
        hidden = F.conv2d(input, weight, shift, *window)
    weight, shift = _folded(last, last_norm)
    return F.conv2d(hidden.relu(), weight, shift, padding=last.padding)


def _folded(conv: nn.Conv2d, norm: nn.Module) -> tuple[Tensor, Tensor]:
    """Weight and bias of a convolution that scales and shifts as the BatchNorm behind it."""
    assert isinstance(norm, nn.BatchNorm2d)
    assert norm.running_mean is not None
    assert norm.running_var is not None
    scale = (norm.running_var + norm.eps).rsqrt()
    if norm.weight is None:
        return conv.weight * scale[:, None, None, None], -norm.running_mean * scale
    scale = scale * norm.weight
    shift = torch.addcmul(norm.bias, norm.running_mean, scale, value=-1)
    return conv.weight * scale[:, None, None, None], shift
