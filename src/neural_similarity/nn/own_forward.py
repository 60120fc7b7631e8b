"""Convolutions with their own ``forward``: what it does, found by running it.

Many pretrained networks contain subclasses of ``nn.Conv2d`` that pad their input with zeros as
TensorFlow does, and then convolve. Their ``forward`` is run here on inputs without data (PyTorch's
meta device), while every call of a PyTorch function is observed. If it pads with zeros, computes
one convolution with the layer's own parameters and settings, returns its result, and calls nothing
else, then the padding is all there is to know about it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, resolve_name

from .._shapes import output_size, same_padding, strided_same_padding

__all__ = ["OwnForwardError", "OwnPadding", "find_padding"]

Sides = tuple[tuple[int, int], ...]
"""Zeros before and after each axis of an image."""

OwnPadding = tuple[tuple[int, int] | None, ...]
"""For each axis of the image the zeros before and after it; None means TensorFlow's ``"same"``."""

_CONVOLUTIONS: dict[type[nn.Module], Callable[..., Tensor]] = {
    nn.Conv1d: torch.conv1d,
    nn.Conv2d: torch.conv2d,
}
# What a forward may read of a tensor: its shape and kind, never its values.
_QUESTIONS: set[Any] = {Tensor.size, Tensor.dim, Tensor.ndimension} | {
    getattr(Tensor, name).__get__ for name in ("shape", "ndim", "dtype", "device", "is_cuda")
}


class OwnForwardError(Exception):
    """A ``forward`` does something other than pad and convolve; the message says what."""


def find_padding(module: nn.Conv1d | nn.Conv2d) -> OwnPadding:
    """The zeros that a layer's ``forward`` puts around its input, for inputs of every size.

    Raises:
        OwnForwardError: it does something else.

    Example:
        >>> class Causal(nn.Conv1d):
        ...     def forward(self, input):
        ...         return super().forward(F.pad(input, (4, 0)))
        >>> find_padding(Causal(2, 3, 5))
        ((4, 0),)
    """
    twin = _twin(module)
    before = _contents(twin)
    watched = []
    for training in (False, True):
        twin.training = training
        watched += [(size, _watch(module, twin, size)) for size in _sizes(module)]
    after = _contents(twin)
    if before.keys() != after.keys() or any(before[k] is not after[k] for k in before):
        raise OwnForwardError("changes the layer")
    return tuple(
        _rule(module, axis, [(size[axis], sides[axis]) for size, sides in watched])
        for axis in range(len(module.kernel_size))
    )


def _twin(module: nn.Module) -> nn.Module:
    """A copy of the layer with the same parameters; what ``forward`` sets is set on the copy."""
    twin = copy.copy(module)
    for name in ("_parameters", "_buffers", "_modules"):
        vars(twin)[name] = dict(vars(module)[name])
    return twin


def _contents(module: nn.Module) -> dict[str, Any]:
    contents = {**vars(module), **module._parameters, **module._buffers, **module._modules}
    return {name: value for name, value in contents.items() if name != "training"}


def _sizes(module: nn.Conv1d | nn.Conv2d) -> Iterator[tuple[int, ...]]:
    """Image sizes that tell paddings apart.

    They cover every remainder modulo the stride, and sizes below the kernel and far above it. While
    one axis grows the other shrinks, so that neither can pass for the other.
    """
    reach = max(d * (k - 1) + 1 for k, d in zip(module.kernel_size, module.dilation, strict=True))
    period = 2 * max(module.stride)
    for start in (reach, 10 * reach, 1):
        for step in range(period):
            yield (start + step, start + period - 1 - step)[: len(module.kernel_size)]


def _rule(
    module: nn.Conv1d | nn.Conv2d, axis: int, watched: list[tuple[int, tuple[int, int]]]
) -> tuple[int, int] | None:
    """The padding of one axis, from the zeros that were observed at some sizes."""
    if len(constant := {sides for _, sides in watched}) == 1:
        return constant.pop()
    settings = module.kernel_size[axis], module.stride[axis], module.dilation[axis]
    for size, sides in watched:
        if sides != strided_same_padding(size, *settings):
            raise OwnForwardError(f"adds {sides} zeros to an axis of {size}, by an unknown rule")
    return None


def _watch(module: nn.Conv1d | nn.Conv2d, twin: nn.Module, size: tuple[int, ...]) -> Sides:
    """The zeros that one call puts around an image of this size."""
    input = torch.empty(2, module.in_channels, *size, dtype=module.weight.dtype, device="meta")
    with torch.enable_grad():
        watch = _Watch(module, input)
    try:
        with torch.enable_grad(), watch:
            output = twin.forward(input)
    except Exception as error:
        if not watch.problem:
            image = "×".join(map(str, size))
            watch.problem = f"fails on an image of {image} ({type(error).__name__}: {error})"
    if watch.problem:
        raise OwnForwardError(watch.problem)
    if watch.output is None or output is not watch.output:
        raise OwnForwardError("returns something other than the result of a convolution")
    return watch.sides[id(watch.convolved)]


class _Watch(TorchFunctionMode):
    """Follows an input through paddings into one convolution, which is not computed."""

    def __init__(self, module: nn.Conv1d | nn.Conv2d, input: Tensor) -> None:
        super().__init__()
        self.module, self.axes = module, len(module.kernel_size)
        stock = next(cls for cls in _CONVOLUTIONS if isinstance(module, cls))
        self.convolution = _CONVOLUTIONS[stock]
        self.sides: dict[int, Sides] = {id(input): ((0, 0),) * self.axes}
        self.padded = [input]  # kept, so that no other tensor gets the same id
        self.convolved: Tensor | None = None
        self.output: Tensor | None = None
        self.modes = _modes()
        self.problem = ""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if function in _QUESTIONS:
            return function(*args, **kwargs)
        if function is F.pad:
            return self._pad(*args, **kwargs)
        if function is self.convolution:
            return self._convolve(*args, **kwargs)
        raise self._refusal(f"calls {resolve_name(function) or function}")

    def _pad(
        self, input: Tensor, pad: Sequence[int], mode: str = "constant", value: Any = None
    ) -> Tensor:
        if id(input) not in self.sides:
            raise self._refusal("pads something other than its input")
        if mode != "constant" or value not in (None, 0) or any(zeros < 0 for zeros in pad):
            raise self._refusal(f"pads by {list(pad)} with mode {mode!r} and value {value}")
        pairs = list(zip(pad[::2], pad[1::2], strict=True))[::-1]  # the last axis comes first
        extra, pairs = pairs[: -self.axes], pairs[-self.axes :]
        if any(before or after for before, after in extra):
            raise self._refusal("pads channels or samples")
        missing = ((0, 0),) * (self.axes - len(pairs))
        padded = F.pad(input, list(pad))
        self.padded.append(padded)
        self.sides[id(padded)] = _sum(self.sides[id(input)], (*missing, *pairs))
        return padded

    def _convolve(
        self,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Tensor:
        module = self.module
        if self.output is not None:
            raise self._refusal("convolves more than once")
        if _modes() != self.modes:
            raise self._refusal("convolves without gradients or under autocast")
        if id(input) not in self.sides:
            raise self._refusal("convolves something other than its input")
        if weight is not module.weight or bias is not module.bias:
            raise self._refusal("convolves with a weight or bias other than the layer's")
        settings = (self._each(stride), self._each(dilation), groups)
        if settings != (tuple(module.stride), tuple(module.dilation), module.groups):
            raise self._refusal(
                "convolves with a stride, dilation or groups other than the layer's"
            )
        if padding == "same":
            inner = tuple(map(same_padding, module.kernel_size, module.dilation))
        else:
            inner = tuple((n, n) for n in self._each(0 if padding == "valid" else padding))
        self.convolved = input
        self.sides[id(input)] = _sum(self.sides[id(input)], inner)
        padded = [n + sum(zeros) for n, zeros in zip(input.shape[2:], inner, strict=True)]
        settings_of_axes = zip(
            padded, module.kernel_size, module.stride, module.dilation, strict=True
        )
        positions = [max(output_size(n, k, s, 0, d), 0) for n, k, s, d in settings_of_axes]
        self.output = input.new_empty(input.shape[0], module.out_channels, *positions)
        return self.output

    def _each(self, value: int | Sequence[int]) -> tuple[int, ...]:
        """A setting for each axis: ``3`` and ``[3]`` mean ``(3, 3)``."""
        values = (value,) if isinstance(value, int) else tuple(value)
        return values * self.axes if len(values) == 1 else values

    def _refusal(self, problem: str) -> OwnForwardError:
        """Also remembered, because the ``forward`` may catch the exception."""
        self.problem = self.problem or problem
        return OwnForwardError(problem)


def _sum(one: Sides, other: Sides) -> Sides:
    return tuple((a + c, b + d) for (a, b), (c, d) in zip(one, other, strict=True))


def _modes() -> tuple[bool, ...]:
    """What changes a convolution besides its arguments."""
    autocast = (torch.is_autocast_enabled(device) for device in ("cpu", "cuda"))
    return (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), *autocast)
