"""Errors about the operands of convolutions and of similarities."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from .._shapes import output_size
from ..errors import ShapeError
from .numbers import is_whole

__all__ = [
    "conv_gradient",
    "conv_operands",
    "conv_output_shape",
    "guide",
    "image_batch",
    "layer_input",
    "pairs",
    "shape",
    "similarity_groups",
    "similarity_shape",
    "weight_similarity",
    "window_positions",
]


def shape(tensor: Tensor) -> str:
    """A shape as readable text."""
    return str(tuple(tensor.shape))


def layer_input(where: str, input: Tensor, channels: int | None = None) -> None:
    """Raise unless ``input`` is a batch of images, with this number of channels if it is given."""
    if input.dim() != 4 or (channels is not None and input.shape[1] != channels):
        C = "C" if channels is None else channels
        raise ShapeError(
            f"{where}: expected input of shape (N, {C}, H, W) or ({C}, H, W), got {shape(input)}."
        )


def image_batch(layer: object, images: Tensor, channels: int | None = None) -> None:
    """Raise unless a layer's ``similarity`` gets a batch; it does not accept a single image."""
    if images.dim() != 4 or (channels is not None and images.shape[1] != channels):
        advice = " Add a batch dimension with images[None]." if images.dim() == 3 else ""
        raise ShapeError(
            f"{type(layer).__name__}.similarity: expected a batch of shape "
            f"(N, {'C' if channels is None else channels}, H, W), got {shape(images)}.{advice}"
        )


def guide(where: str, input: Tensor, guide: Tensor) -> None:
    """Raise unless the guide has the input's positions, and its samples if it is a batch."""
    batch = input.shape[:-3]  # none for a single image
    samples = guide.dim() == input.dim() and guide.shape[:-3] in (batch, batch and (1,))
    if not samples or guide.shape[-2:] != input.shape[-2:]:
        expected = ", ".join(map(str, (*batch, "D", *input.shape[-2:])))
        size = ", and its batch size or 1" if batch else ""
        raise ShapeError(
            f"{where}: expected guide of shape ({expected}), got {shape(guide)}. It must have the "
            f"height and width of the input{size}."
        )


def conv_output_shape(
    where: str,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> tuple[int, int]:
    """Check the arguments of a two-dimensional convolution and return (P, Q)."""
    layer_input(where, input)
    if weight.dim() != 4:
        raise ShapeError(
            f"{where}: expected weight of shape (O, C/G, kh, kw), got {shape(weight)}."
        )
    _windows(where, stride, padding, dilation, groups)
    (_, channels, *size), (kernels, fan_in, *kernel) = input.shape, weight.shape
    if channels != fan_in * groups:
        raise ShapeError(
            f"{where}: expected input with {fan_in * groups} channels, got {channels}. "
            f"The weight {shape(weight)} reads {fan_in} channels in each of {groups} "
            f"group(s). Change in_channels or groups."
        )
    if kernels % groups:
        raise ShapeError(
            f"{where}: expected groups to divide the {kernels} kernels of the weight, got "
            f"{groups}. Every group has the same number of kernels."
        )
    if bias is not None and bias.shape != (kernels,):
        raise ShapeError(f"{where}: expected bias of shape ({kernels},), got {shape(bias)}.")
    return _positions(where, size, kernel, stride, padding, dilation)


def similarity_shape(
    where: str,
    similarity: Tensor,
    batch: int,
    taps: int,
    positions: tuple[int, int],
    *,
    static: bool = True,
    groups: int = 1,
) -> None:
    """Raise unless ``similarity`` has one of the shapes that the operation accepts.

    Args:
        static: whether the two shapes without positions are allowed as well.
        groups: how many groups of channels have their own diagonal.
    """
    got = tuple(similarity.shape)
    diagonal, matrix = (groups * taps,), (taps, taps)
    blocks = {4: diagonal} if groups > 1 else {4: diagonal, 5: matrix}
    static = static and groups == 1
    if len(got) in blocks and got[1:-2] == blocks[len(got)] and (got[0] == batch or got[0] == 1):
        rows, columns = got[-2:]
        if (rows == positions[0] or rows == 1) and (columns == positions[1] or columns == 1):
            return
    if static and got in (diagonal, matrix):
        return
    dynamic = [(batch, *block, *positions) for block in blocks.values()]
    expected = [diagonal, matrix, *dynamic] if static else dynamic
    shapes = [shape for shape in expected if len(shape) == len(got)] or expected
    what = "shape" if len(shapes) == 1 else "one of the shapes"
    many = f" in each of {groups} groups of channels" if groups > 1 else ""
    raise ShapeError(
        f"{where}: expected similarity of {what} {', '.join(map(str, shapes))}, got {got}. The "
        f"batch has {batch} sample(s), the kernel has {taps} taps{many}, and the output has "
        f"{positions[0]} x {positions[1]} positions. One sample, row or column may stand for all."
    )


def similarity_groups(where: str, groups: int, channels: int) -> None:
    """Raise unless the channels can be split into this many groups."""
    if not is_whole(groups) or groups < 1 or channels % groups:
        raise ShapeError(
            f"{where}: expected similarity_groups to divide the {channels} channels, got "
            f"{groups}. Each group of channels has its own similarity."
        )


def window_positions(
    where: str,
    image: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> tuple[int, int]:
    """Check the windows of a layer on an image ``(N, C, H, W)`` and return (P, Q)."""
    _windows(where, stride, padding, dilation)
    return _positions(where, image.shape[2:], kernel, stride, padding, dilation)


def pairs(
    where: str,
    query: Tensor,
    key: Tensor,
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
    groups: int,
) -> None:
    """Raise unless the query has a vector for every window of the key."""
    if query.dim() != 4 or key.dim() != 4:
        raise ShapeError(
            f"{where}: expected query (N, D, P, Q) and key (N, D, H, W), got {shape(query)} and "
            f"{shape(key)}."
        )
    if key.dtype != query.dtype or key.device != query.device:
        raise ShapeError(
            f"{where}: expected query and key with the same dtype on the same device, got "
            f"{query.dtype} on {query.device} and {key.dtype} on {key.device}. Convert them with "
            f".to()."
        )
    if not query.is_floating_point():
        raise ShapeError(
            f"{where}: expected query and key of floating point numbers, got {query.dtype}. For an "
            f"image of bytes: image.float() / 255."
        )
    positions = window_positions(where, key, kernel, stride, padding, dilation)
    expected = (*key.shape[:2], *positions)
    if query.shape != expected:
        raise ShapeError(
            f"{where}: expected query of shape {expected}, got {shape(query)}. The windows of the "
            f"key {shape(key)} have {positions[0]} x {positions[1]} positions, and each is "
            f"compared with one vector. Take the query at the windows' centres."
        )
    if not is_whole(groups) or groups < 1 or key.shape[1] % groups:
        raise ShapeError(
            f"{where}: expected groups to divide the {key.shape[1]} channels, got {groups}. "
            f"Each group of channels is compared separately."
        )


def conv_operands(where: str, input: Tensor, weight: Tensor, similarity: Tensor) -> None:
    """Raise unless the three tensors have one floating-point dtype and are on one device."""
    names = "input, weight and similarity"
    if not input.dtype == weight.dtype == similarity.dtype or not input.is_floating_point():
        raise ShapeError(
            f"{where}: expected {names} with the same floating-point dtype, got {input.dtype}, "
            f"{weight.dtype} and {similarity.dtype}. Convert them with .to(dtype)."
        )
    if not input.device == weight.device == similarity.device:
        raise ShapeError(
            f"{where}: expected {names} on the same device, got {input.device}, {weight.device} "
            f"and {similarity.device}. Move them with .to(device)."
        )


def conv_gradient(where: str, grad_output: Tensor, output: tuple[int, ...]) -> None:
    """Raise unless the gradient of a convolution's output has the output's shape."""
    if grad_output.shape != output:
        raise ShapeError(
            f"{where}: expected grad_output of the same shape as the output, {output}, got "
            f"{shape(grad_output)}."
        )


def weight_similarity(
    where: str, similarity: Tensor, leading: tuple[int, ...], size: int, scope: str
) -> None:
    """Raise unless ``similarity`` is ``(*leading, size)`` or ``(*leading, size, size)``."""
    diagonal, matrix = (*leading, size), (*leading, size, size)
    if tuple(similarity.shape) not in (diagonal, matrix):
        raise ShapeError(
            f"{where}: expected similarity of shape {diagonal} or {matrix} for "
            f"scope {scope!r}, got {shape(similarity)}."
        )


def _windows(
    where: str,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int = 1,
) -> None:
    for what, values, least in (
        ("stride", stride, 1),
        ("dilation", dilation, 1),
        ("padding", padding, 0),
        ("groups", (groups,), 1),
    ):
        if min(values) < least:
            got = groups if what == "groups" else tuple(values)
            raise ShapeError(f"{where}: expected {what} of at least {least}, got {got}.")


def _positions(
    where: str,
    size: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> tuple[int, int]:
    if min(kernel) < 1:
        raise ShapeError(f"{where}: expected kernel_size of at least 1, got {tuple(kernel)}.")
    rows, columns = map(output_size, size, kernel, stride, padding, dilation)
    if rows < 1 or columns < 1:
        padded = tuple(s + 2 * p for s, p in zip(size, padding, strict=True))
        reach = tuple(d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True))
        raise ShapeError(
            f"{where}: expected a padded input of at least {reach}, got {padded}. "
            f"The kernel is larger than the image. Use a larger image, more padding, or a smaller "
            f"kernel or dilation."
        )
    return rows, columns
