"""Hyperspherical convolution: it depends on the angle between kernel and patch, not on lengths.

The operators of SphereNet (Liu et al., *Deep Hyperspherical Learning*, NeurIPS 2017). The paper
uses them to predict similarities; SphereNet itself is a dynamic similarity, ``M = I / (‖W‖ ‖X‖)``.
"""

from __future__ import annotations

from math import exp, pi
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import _check
from .._autocast import without_autocast
from .._shapes import pair
from ..errors import ShapeError
from .modes import exported

__all__ = [
    "NORMALIZE",
    "OPERATORS",
    "Normalize",
    "Operator",
    "check_choice",
    "patch_norm",
    "sphere_conv2d",
    "sphere_linear",
]

Normalize = Literal["input", "weight", "both"]
Operator = Literal["cosine", "linear", "sigmoid"]
NORMALIZE: tuple[str, ...] = get_args(Normalize)
OPERATORS: tuple[str, ...] = get_args(Operator)

EPS = 1e-4  # added to squared norms, as in the authors' code: a zero patch gives zero, not NaN


def sphere_conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | tuple[int, int] = 1,
    padding: int | tuple[int, int] = 0,
    dilation: int | tuple[int, int] = 1,
    groups: int = 1,
    *,
    operator: Operator = "cosine",
    normalize: Normalize = "both",
    sharpness: float | Tensor = 0.3,
) -> Tensor:
    r"""A convolution of directions: :math:`g(\theta)` of the angle between kernel and patch.

    .. math:: \cos\theta_{n,o,l} = \frac{\langle W_o, X_{n,l} \rangle}{\|W_o\| \, \|X_{n,l}\|},
        \qquad \|V\| = \sqrt{\textstyle\sum V^2 + 10^{-4}}

    ===========  ====================================================================
    operator     g(θ)
    ===========  ====================================================================
    ``cosine``   cos θ
    ``linear``   1 − 2θ/π
    ``sigmoid``  falls from 1 to −1 like a sigmoid, k = ``sharpness``:
                 (1+e^(−π/2k))/(1−e^(−π/2k)) · (1−e^(θ/k−π/2k))/(1+e^(θ/k−π/2k))
    ===========  ====================================================================

    With ``normalize="input"`` or ``"weight"`` the result is divided only by that length. An angle
    needs both lengths, so this works only with ``cosine``. Shapes are those of
    :func:`torch.nn.functional.conv2d`.

    Cost: a convolution, and the patch norms: one channel of squares, summed over the kernel.
    """
    if input.dim() == 3:
        batch, geometry = input[None], (stride, padding, dilation, groups)
        return sphere_conv2d(
            batch, weight, bias, *geometry,
            operator=operator, normalize=normalize, sharpness=sharpness,
        )[0]  # fmt: skip
    check_choice("sphere_conv2d", operator, normalize, sharpness)
    windows = pair(stride), pair(padding), pair(dilation)
    _check.conv_output_shape("sphere_conv2d", input, weight, bias, *windows, groups)
    # The output is divided, in one pass: normalised patches would have to be stored.
    output = F.conv2d(input, weight, None, stride, padding, dilation, groups)
    if normalize != "weight":
        kernel = (weight.shape[2], weight.shape[3])
        norm = patch_norm(input, kernel, stride, padding, dilation, groups)
        if groups > 1:
            norm = norm.repeat_interleave(weight.shape[0] // groups, dim=1)
        # A product with the reciprocal of the small tensor: its gradient is cheaper.
        output = output / norm if exported() else output * norm.reciprocal().to(output.dtype)
    if normalize != "input":
        output = output * _norm(weight.flatten(1)).reciprocal().to(output.dtype)[:, None, None]
    output = _of_angle(output, operator, sharpness)
    return output if bias is None else output + bias.to(output.dtype)[:, None, None]


def sphere_linear(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    operator: Operator = "cosine",
    normalize: Normalize = "both",
    sharpness: float | Tensor = 0.3,
) -> Tensor:
    """:func:`sphere_conv2d` for a fully connected layer: ``(..., I)`` to ``(..., O)``."""
    check_choice("sphere_linear", operator, normalize, sharpness)
    output = F.linear(input, weight)
    if normalize != "weight":
        output = output * _norm(input).reciprocal().to(output.dtype)[..., None]
    if normalize != "input":
        output = output * _norm(weight).reciprocal().to(output.dtype)
    output = _of_angle(output, operator, sharpness)
    return output if bias is None else output + bias.to(output.dtype)


def patch_norm(
    input: Tensor,
    kernel_size: tuple[int, int],
    stride: int | tuple[int, int],
    padding: int | tuple[int, int],
    dilation: int | tuple[int, int],
    groups: int = 1,
) -> Tensor:
    """The length of the patch under the kernel at every position: ``(N, G, P, Q)``."""
    if exported() and groups == 1:
        return _exported_patch_norm(input, kernel_size, stride, padding, dilation)
    # In float16 the squares of a patch overflow, so they are summed in float32 at least.
    with without_autocast(input.device):
        squares = _squared_length(_wide(input), groups)
        # Two thin windows cost kh + kw additions per position; one window costs kh · kw.
        (sh, sw), (ph, pw), (dh, dw) = pair(stride), pair(padding), pair(dilation)
        column = squares.new_ones(groups, 1, kernel_size[0], 1)
        row = squares.new_ones(groups, 1, 1, kernel_size[1])
        squares = F.conv2d(squares, column, None, (sh, 1), (ph, 0), (dh, 1), groups)
        squares = F.conv2d(squares, row, None, (1, sw), (0, pw), (1, dw), groups)
        return (squares + EPS).sqrt()


def _exported_patch_norm(
    input: Tensor,
    kernel_size: tuple[int, int],
    stride: int | tuple[int, int],
    padding: int | tuple[int, int],
    dilation: int | tuple[int, int],
) -> Tensor:
    """:func:`patch_norm` in few operations. onnxruntime multiplies faster than it sums channels."""
    squares = (input * input).flatten(2)
    sums = squares.new_ones(1, input.shape[1]) @ squares
    window, eps = squares.new_ones(1, 1, *kernel_size), squares.new_full((1,), EPS)
    lengths = sums.reshape(-1, 1, *input.shape[2:])
    return F.conv2d(lengths, window, eps, stride, padding, dilation).sqrt()


def _squared_length(input: Tensor, groups: int) -> Tensor:
    """Σ_c x² over the channels of each group: ``(N, G, H, W)``."""
    if groups == 1:
        return input.square().sum(1, keepdim=True)
    N, C, H, W = input.shape
    return input.square().reshape(N, groups, C // groups, H, W).sum(2)


def _wide(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype.itemsize < 4 else tensor


def _norm(vectors: Tensor) -> Tensor:
    with without_autocast(vectors.device):
        return (_wide(vectors).square().sum(-1) + EPS).sqrt()


def _of_angle(cosine: Tensor, operator: Operator, sharpness: float | Tensor) -> Tensor:
    if operator == "cosine":
        return cosine
    # In float32 or wider: in a narrow dtype, neighbouring values near one differ by up to 7°.
    exact = _wide(cosine)
    closest = 1 - max(1e-6, torch.finfo(exact.dtype).eps)  # the arc cosine is too steep at one
    angle = exact.clamp(-closest, closest).acos()
    if operator == "linear":
        return (1 - angle * (2 / pi)).to(cosine.dtype)
    k = sharpness
    edge = torch.exp(-pi / (2 * k)) if isinstance(k, Tensor) else exp(-pi / (2 * k))
    # (1 - e^u) / (1 + e^u) = -tanh(u / 2), which does not overflow
    value = -torch.tanh((angle - pi / 2) / (2 * k)) * ((1 + edge) / (1 - edge))
    return value.to(cosine.dtype)


def check_choice(where: str, operator: str, normalize: str, sharpness: float | Tensor) -> None:
    """Raise unless operator and normalize can be combined, and the sharpness is above zero."""
    _check.known_name(where, "operator", operator, OPERATORS)
    _check.known_name(where, "normalize", normalize, NORMALIZE)
    if operator != "cosine" and normalize != "both":
        raise ShapeError(
            f"{where}: expected normalize='both' with operator {operator!r}, got {normalize!r}. "
            f"An angle needs both lengths. Use operator='cosine', or normalize both."
        )
    if not isinstance(sharpness, Tensor):  # a learned one changes
        _check.positive_numbers(where, sharpness=sharpness)
