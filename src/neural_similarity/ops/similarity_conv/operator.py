"""The similarity convolution as a PyTorch operator.

``neural_similarity::similarity_conv2d`` and ``neural_similarity::similarity_conv2d_backward``
compute

    y[n,o,l] = sum_c sum_i sum_j W[o,c,i] * M[n,s(c),i,j,l] * X[n,c,j,l]

with s(c) the similarity group of channel c, and its gradients. The map is linear in each of ``X``,
``W`` and ``M``, so its gradients are sums of maps of the same kind: the two operators are
differentiated in terms of each other, to any order.

Which code does the work is decided in ``dispatch.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.flop_counter import register_flop_formula

from ... import _check
from ..._shapes import output_size
from .._transforms import transformed
from ..modes import exported, unobserved
from . import dispatch, onnx_forms
from .operation_counts import backward_operations, forward_operations
from .pieces import format_of, gradient_memory

__all__ = ["similarity_conv2d", "traceable"]

# PyTorch's registration functions are untyped.
_library: Any = torch.library.Library
_register_fake: Any = torch.library.register_fake

_LIBRARY = _library("neural_similarity", "DEF")
_OPERANDS = "Tensor input, Tensor weight, Tensor similarity"
_SETTINGS = "int[2] stride, int[2] padding, int[2] dilation, int groups, int similarity_groups"
_LIBRARY.define(
    f"similarity_conv2d({_OPERANDS}, {_SETTINGS}) -> Tensor", tags=torch.Tag.pt2_compliant_tag
)
_LIBRARY.define(
    f"similarity_conv2d_backward(Tensor grad_output, {_OPERANDS}, {_SETTINGS}, bool[3] mask)"
    " -> (Tensor, Tensor, Tensor)",
    tags=torch.Tag.pt2_compliant_tag,
)
_FORWARD = torch.ops.neural_similarity.similarity_conv2d.default
_BACKWARD = torch.ops.neural_similarity.similarity_conv2d_backward.default


def similarity_conv2d(
    input: Tensor,
    weight: Tensor,
    similarity: Tensor,
    stride: Sequence[int] = (1, 1),
    padding: Sequence[int] = (0, 0),
    dilation: Sequence[int] = (1, 1),
    groups: int = 1,
    similarity_groups: int = 1,
) -> Tensor:
    """Convolution whose patches are weighted, position by position, by a similarity.

    ``input`` is ``(N, C, H, W)``, ``weight`` ``(O, C/groups, kh, kw)``, and ``similarity``
    ``(N or 1, S * K, P or 1, Q or 1)`` (diagonal, S the ``similarity_groups``) or
    ``(N or 1, K, K, P or 1, Q or 1)`` (full; the first tap axis pairs with the weight, the second
    with the input), where ``K = kh * kw`` counts taps in row-major order and ``(P, Q)`` is the size
    of the output. Padding is with zeros.
    """
    settings = (stride, padding, dilation, groups, similarity_groups)
    if unobserved(input, weight, similarity):
        # PyTorch's dispatch to the operator takes longer than a small convolution.
        if torch.is_grad_enabled():
            return cast(Tensor, _Direct.apply(input, weight, similarity, settings))  # type: ignore[no-untyped-call]
        return cast(Tensor, dispatch.choose(input).forward(input, weight, similarity, *settings))
    if exported():
        return onnx_forms.similarity_conv2d(input, weight, similarity, *settings)
    if transformed():
        return traceable(input, weight, similarity, *settings)
    return cast(Tensor, _FORWARD(input, weight, similarity, *settings))


class _Direct(torch.autograd.Function):
    """The operator without its overhead, where nothing but autograd traces the code."""

    @staticmethod
    def forward(
        ctx: Any, input: Tensor, weight: Tensor, similarity: Tensor, settings: tuple[Any, ...]
    ) -> Tensor:
        ctx.save_for_backward(input, weight, similarity)
        ctx.settings = settings
        return cast(Tensor, dispatch.choose(input).forward(input, weight, similarity, *settings))

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        operands, mask = ctx.saved_tensors, list(ctx.needs_input_grad[:3])
        # The operator, if this gradient will itself be differentiated.
        direct = not torch.is_grad_enabled() and unobserved(grad_output, *operands)
        backward = dispatch.choose(operands[0]).backward if direct else _BACKWARD
        gradients = backward(grad_output, *operands, *ctx.settings, mask)
        return (*(g if m else None for g, m in zip(gradients, mask, strict=True)), None)


def traceable(
    input: Tensor,
    weight: Tensor,
    similarity: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    similarity_groups: int,
) -> Tensor:
    """The same result from standard operations, which every transformation supports.

    The weighted patches of the whole batch are stored here: ``K`` times the input.
    """
    kernel = weight.shape[2:]
    rows, columns = map(output_size, input.shape[2:], weight.shape[2:], stride, padding, dilation)
    padded = functional.pad(input, (padding[1], padding[1], padding[0], padding[0]))
    taps = []
    for tap in range(kernel[0] * kernel[1]):
        top, left = tap // kernel[1] * dilation[0], tap % kernel[1] * dilation[1]
        bottom = top + (rows - 1) * stride[0] + 1
        right = left + (columns - 1) * stride[1] + 1
        taps.append(padded[:, :, top : bottom : stride[0], left : right : stride[1]])
    if similarity.dim() == 4:
        factors = similarity.unflatten(1, (similarity_groups, len(taps)))
        weighted = [_by_group(taps[k], factors[:, :, k]) for k in range(len(taps))]
    else:
        patches = torch.stack(taps, 2)
        weighted = [(patches * similarity[:, None, i]).sum(2) for i in range(len(taps))]
    # The taps of a channel adjacent, as in the weight's memory.
    panel = torch.stack(weighted, 2).flatten(1, 2)
    return functional.conv2d(panel, weight.reshape(weight.shape[0], -1, 1, 1), groups=groups)


def _by_group(tap: Tensor, factors: Tensor) -> Tensor:
    """Multiply each group of channels by its own factor: ``(N, C, P, Q)`` by ``(N, S, P, Q)``."""
    if factors.shape[1] == 1:
        return tap * factors
    groups: Tensor = tap.unflatten(1, (factors.shape[1], -1)) * factors[:, :, None]
    return groups.flatten(1, 2)


def _forward_kernel(input: Tensor, *rest: Any) -> Tensor:
    _output_shape(input, *rest)
    return cast(Tensor, dispatch.choose(input).forward(input, *rest))


def _backward_kernel(
    grad_output: Tensor, input: Tensor, weight: Tensor, similarity: Tensor, *rest: Any
) -> tuple[Tensor, Tensor, Tensor]:
    output_shape = _output_shape(input, weight, similarity, *rest[:-1])
    _check.conv_gradient("similarity_conv2d_backward", grad_output, output_shape)
    path = dispatch.choose(input)
    gradients = path.backward(grad_output, input, weight, similarity, *rest)
    return cast(tuple[Tensor, Tensor, Tensor], gradients)


_LIBRARY.impl("similarity_conv2d", _forward_kernel, "CompositeExplicitAutograd")
_LIBRARY.impl("similarity_conv2d_backward", _backward_kernel, "CompositeExplicitAutograd")


def _output_shape(
    input: Tensor,
    weight: Tensor,
    similarity: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    similarity_groups: int,
) -> tuple[int, int, int, int]:
    """Check that the operands fit each other and return the shape of the output.

    This runs on every call, on fake tensors too, so it only compares shapes.
    """
    where = "similarity_conv2d"
    rows, columns = _check.conv_output_shape(
        where, input, weight, None, stride, padding, dilation, groups
    )
    N, taps = input.shape[0], weight.shape[2] * weight.shape[3]
    _check.similarity_groups(where, similarity_groups, input.shape[1])
    _check.similarity_shape(
        where, similarity, N, taps, (rows, columns), static=False, groups=similarity_groups
    )
    _check.conv_operands(where, input, weight, similarity)
    return N, weight.shape[0], rows, columns


def _forward_fake(input: Tensor, weight: Tensor, similarity: Tensor, *settings: Any) -> Tensor:
    size = _output_shape(input, weight, similarity, *settings)
    return torch.empty(size, dtype=input.dtype, device=input.device, memory_format=format_of(input))


def _backward_fake(
    grad_output: Tensor, input: Tensor, weight: Tensor, similarity: Tensor, *rest: Any
) -> tuple[Tensor, Tensor, Tensor]:
    *_, mask = rest
    gx = input.new_empty(0)
    if mask[0]:
        gx = torch.empty_like(input, memory_format=format_of(input))
    gw = weight.new_empty(weight.shape if mask[1] else 0)
    gm = gradient_memory(similarity) if mask[2] else similarity.new_empty(0)
    return gx, gw, gm


_register_fake("neural_similarity::similarity_conv2d", _forward_fake, lib=_LIBRARY)
_register_fake("neural_similarity::similarity_conv2d_backward", _backward_fake, lib=_LIBRARY)
_count: Any = register_flop_formula
_count(torch.ops.neural_similarity.similarity_conv2d)(forward_operations)
_count(torch.ops.neural_similarity.similarity_conv2d_backward)(backward_operations)


def _save_forward(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:3])
    ctx.settings = inputs[3:]


def _differentiate_forward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
    mask = list(ctx.needs_input_grad[:3])
    gradients = _BACKWARD(grad_output, *ctx.saved_tensors, *ctx.settings, mask)
    return (*(g if m else None for g, m in zip(gradients, mask, strict=True)), *(None,) * 5)


def _save_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs[:4])
    *ctx.settings, ctx.mask = inputs[4:]


def _differentiate_backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Tensor | None, ...]:
    """Differentiate the gradients (gx, gw, gm), which were paired with ``cotangents``.

    Paired with its cotangent, the gradient of an operand is <gy, T(X, W, M)> with that operand
    replaced by the cotangent, where T is the convolution. It is differentiated in gy, and in the
    two operands that remain, by the operators themselves.
    """
    grad_output, *operands = ctx.saved_tensors
    sums: list[Tensor | None] = [None] * 4
    for place in range(3):
        cotangent = cotangents[place]
        if cotangent is None or not ctx.mask[place]:
            continue
        replaced = [*operands[:place], cotangent, *operands[place + 1 :]]
        if ctx.needs_input_grad[0]:
            _accumulate(sums, 0, _FORWARD(*replaced, *ctx.settings))
        mask = [ctx.needs_input_grad[1 + i] and i != place for i in range(3)]
        if any(mask):
            gradients = _BACKWARD(grad_output, *replaced, *ctx.settings, mask)
            for i in range(3):
                if mask[i]:
                    _accumulate(sums, 1 + i, gradients[i])
    return (*sums, *(None,) * 6)


def _accumulate(sums: list[Tensor | None], place: int, term: Tensor) -> None:
    previous = sums[place]
    sums[place] = term if previous is None else previous + term


torch.library.register_autograd(
    "neural_similarity::similarity_conv2d",
    _differentiate_forward,
    setup_context=_save_forward,
    lib=_LIBRARY,
)
torch.library.register_autograd(
    "neural_similarity::similarity_conv2d_backward",
    _differentiate_backward,
    setup_context=_save_backward,
    lib=_LIBRARY,
)


def _autocast_kernel(device: str, key: str) -> Callable[..., Tensor]:
    """Cast the operands to the dtype of autocast, as PyTorch does for convolutions.

    ``torch.library.register_autocast`` would fix one dtype in advance.
    """
    keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))

    def kernel(*args: Any) -> Tensor:
        dtype = torch.get_autocast_dtype(device)
        operands = [
            a.to(dtype) if a.device.type == device and a.dtype != torch.float64 else a
            for a in args[:3]
        ]
        with torch._C._ExcludeDispatchKeyGuard(keys):
            return cast(Tensor, _FORWARD(*operands, *args[3:]))

    return kernel


def _exact_backward(key: str) -> Callable[..., Any]:
    """The backward pass in the dtype of its operands, also inside autocast."""
    keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))

    def kernel(*args: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(keys):
            return _BACKWARD(*args)

    return kernel


for _device in ("CPU", "CUDA"):
    _key = f"Autocast{_device}"
    _LIBRARY.impl("similarity_conv2d", _autocast_kernel(_device.lower(), _key), _key)
    _LIBRARY.impl("similarity_conv2d_backward", _exact_backward(_key), _key)
