"""A similarity from pairs of features: the window's centre with each of its taps.

Local attention, pixel-adaptive convolution and the bilateral filter have such a similarity.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import _check
from .._shapes import pair
from ._transforms import transformed

__all__ = ["PAIR_KERNELS", "PairKernel", "pair_similarity"]

PairKernel = Literal["dot", "gaussian"]
PAIR_KERNELS: tuple[str, ...] = get_args(PairKernel)


def pair_similarity(
    query: Tensor,
    key: Tensor,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    *,
    kernel: PairKernel = "dot",
    groups: int = 1,
) -> Tensor:
    r"""Compare the query at every output position with the keys under the kernel's taps.

    .. math:: M_{n,s,i,l} = \langle q_{n,s,l}, k_{n,s,l+i} \rangle
        \quad\text{or}\quad \exp(-\tfrac12 \| q_{n,s,l} - k_{n,s,l+i} \|^2)

    with sample n, group of channels s (a head), tap i, output position l = (p, q), and l + i the
    pixel under tap i of the window at l. Outside the image the key is zero.

    Args:
        query: ``(N, D, P, Q)``, one vector for each output position. With a stride, or without
            padding, the caller selects the positions of the windows' centres.
        key: ``(N, D, H, W)``.
        kernel_size, stride, padding, dilation: the windows, as in a convolution.
        kernel: ``"dot"`` or ``"gaussian"``.
        groups: S, how many groups of neighbouring channels are compared separately; it divides D.

    Returns:
        ``(N, S·K, P, Q)``, the entries of a group adjacent, as
        :func:`~neural_similarity.ops.similarity_conv2d` takes it with ``similarity_groups=S``.

    Cost in multiply-adds per output position: ``K·D``. Memory, including the backward pass: the
    result and a few maps of the query's size, never the K windows of the key.

    Example:
        >>> features = torch.randn(2, 6, 8, 8)
        >>> pair_similarity(features, features, 3, padding=1, kernel="gaussian").shape
        torch.Size([2, 9, 8, 8])
    """
    where = "pair_similarity"
    _check.known_name(where, "kernel", kernel, PAIR_KERNELS)
    windows = pair(kernel_size), pair(stride), pair(padding), pair(dilation)
    _check.pairs(where, query, key, *windows, groups)
    (top, left), gaussian = windows[2], kernel == "gaussian"
    centre = query.unflatten(1, (groups, -1))
    padded = F.pad(key, (left, left, top, top)).unflatten(1, (groups, -1))
    if torch.compiler.is_compiling() or torch.onnx.is_in_onnx_export() or transformed():
        scores = _traceable(centre, padded, windows, gaussian)
    else:
        scores = _Scores.apply(centre, padded, windows, gaussian)  # type: ignore[no-untyped-call]
    # In place: the scores are as large as the result, and nothing else uses them.
    return scores.mul_(-0.5).exp_().flatten(1, 2) if gaussian else scores.flatten(1, 2)


_Windows = tuple[tuple[int, int], tuple[int, int], tuple[int, int], tuple[int, int]]


def _taps(padded: Tensor, positions: Sequence[int], windows: _Windows) -> Iterator[Tensor]:
    """What lies under each tap at every position: views of the padded map, not copies."""
    (kh, kw), stride, _, dilation = windows
    for tap in range(kh * kw):
        top, left = tap // kw * dilation[0], tap % kw * dilation[1]
        bottom = top + (positions[0] - 1) * stride[0] + 1
        right = left + (positions[1] - 1) * stride[1] + 1
        yield padded[..., top : bottom : stride[0], left : right : stride[1]]


def _score(centre: Tensor, tap: Tensor, squared_distance: bool) -> Tensor:
    return ((centre - tap).square() if squared_distance else centre * tap).sum(2)


def _traceable(centre: Tensor, padded: Tensor, windows: _Windows, squared_distance: bool) -> Tensor:
    taps = _taps(padded, centre.shape[-2:], windows)
    return torch.stack([_score(centre, tap, squared_distance) for tap in taps], 2)


class _Scores(torch.autograd.Function):
    """Dot products or squared distances, ``(N, S, K, P, Q)``.

    PyTorch would store the difference of every pair for the backward pass: K times the input. This
    recomputes it. The backward pass consists of differentiable operations.
    """

    @staticmethod
    def forward(
        centre: Tensor, padded: Tensor, windows: _Windows, squared_distance: bool
    ) -> Tensor:
        N, S, _, P, Q = centre.shape
        (kh, kw), *_ = windows
        scores = centre.new_empty(N, S, kh * kw, P, Q)
        for k, tap in enumerate(_taps(padded, (P, Q), windows)):
            scores[:, :, k] = _score(centre, tap, squared_distance)
        return scores

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:2])
        ctx.windows, ctx.squared_distance = inputs[2:]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        centre, padded = ctx.saved_tensors
        if torch._C._functorch.is_legacy_batchedtensor(gradient):  # it cannot be added in place
            return *_batched_gradients(ctx, gradient), None, None
        to_centre = torch.zeros_like(centre) if ctx.needs_input_grad[0] else None
        to_padded = torch.zeros_like(padded) if ctx.needs_input_grad[1] else None
        positions = centre.shape[-2:]
        places = _taps(padded if to_padded is None else to_padded, positions, ctx.windows)
        for k, tap in enumerate(_taps(padded, positions, ctx.windows)):
            place, slope = next(places), gradient[:, :, k, None]
            along_centre, along_tap = tap, centre
            if ctx.squared_distance:
                along_centre = 2 * (centre - tap)
                along_tap = -along_centre
            if to_centre is not None:
                to_centre.addcmul_(slope, along_centre)
            if to_padded is not None:
                place.addcmul_(slope, along_tap)
        return to_centre, to_padded, None, None


def _batched_gradients(ctx: Any, gradient: Tensor) -> list[Tensor | None]:
    """The gradients of both operands for many gradients at once (``is_grads_batched``)."""
    operands, needed = ctx.saved_tensors, ctx.needs_input_grad[:2]
    with torch.enable_grad():
        scores = _traceable(operands[0], operands[1], ctx.windows, ctx.squared_distance)
    wanted = [operand for operand, need in zip(operands, needed, strict=True) if need]
    gradients = iter(
        torch.autograd.grad(scores, wanted, gradient, create_graph=torch.is_grad_enabled())
    )
    return [next(gradients) if need else None for need in needed]
