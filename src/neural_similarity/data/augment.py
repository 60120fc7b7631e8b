"""Random crops and mirror images, for a whole batch at a time.

A row of random numbers decides what happens to an image. The numbers are drawn for the whole batch
at once, and applied later, so that several processes can draw the same numbers and each apply its
own part.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import _check
from ..errors import DataError
from .images import SEEN_SHARE

__all__ = [
    "PADDINGS",
    "Augment",
    "Box",
    "DrawBox",
    "apply_numbers",
    "augment_batch",
    "color_shift",
    "crop_box",
    "draw_numbers",
    "no_augment",
    "square_box",
]

#: Random numbers per image: vertical and horizontal position, mirror, area, aspect ratio.
_NUMBERS = 5
#: And these, drawn after the others: how far the colours move along each of their axes.
_COLORS = 3

_LEAST_AREA, _WIDEST = 0.08, 4 / 3

PADDINGS = ("zeros", "mirror")
#: A window of an image: top, left, height, width, in pixels.
Box = tuple[float, float, float, float]
#: From height, width and random numbers to the window.
DrawBox = Callable[[int, int, Sequence[float]], Box]


@dataclass(frozen=True)
class Augment:
    """How training images are augmented.

    Args:
        crop: pad the image by this many pixels on each side, then crop a random window of the old
            size.
        flip: mirror a random half of the images, left to right.
        resized_crop: instead of ``crop``, crop a random window with 8% to 100% of the area and an
            aspect ratio between 3:4 and 4:3 and resize it, as is usual for photographs.
        padding: what ``crop`` pads with: ``"zeros"``, or ``"mirror"``, the mirror image across the
            edge, whose first row is the last row of the image (TensorFlow's "symmetric").
        square_crop: instead of ``crop``, crop a random square from the middle square of the image,
            with seven eighths of its side (224 of 256), and resize it, as in `AlexNet
            <https://papers.nips.cc/paper/4824>`_.
        color_noise: standard deviation of AlexNet's colour noise; its own is 0.1. See
            :func:`color_shift`. Only :func:`train_loader` adds it, to normalised images.
    """

    crop: int = 4
    flip: bool = True
    resized_crop: bool = False
    padding: Literal["zeros", "mirror"] = "zeros"
    square_crop: bool = False
    color_noise: float = 0.0

    def __post_init__(self) -> None:
        _check.counts("Augment", crop=self.crop)
        for name in ("flip", "resized_crop", "square_crop"):
            _check.true_or_false("Augment", **{name: getattr(self, name)})
        _check.known_name("Augment", "padding", self.padding, PADDINGS)
        if self.resized_crop and self.square_crop:
            raise DataError(
                "Augment: expected resized_crop or square_crop, got both. An image has one window. "
                "Use one of them."
            )
        _check.real_numbers("Augment", color_noise=self.color_noise)
        if not 0 <= self.color_noise < math.inf:
            raise DataError(
                f"Augment: expected color_noise to be a finite number of at least 0, got "
                f"{self.color_noise}."
            )

    @property
    def box(self) -> DrawBox | None:
        """What draws the window that is resized; None if none is."""
        return crop_box if self.resized_crop else square_box if self.square_crop else None


no_augment = Augment(crop=0, flip=False)


def augment_batch(images: Tensor, augment: Augment, generator: torch.Generator) -> Tensor:
    """Augment each image of ``(N, C, H, W)`` independently; shape and dtype stay the same.

    Example:
        >>> images = torch.arange(32, dtype=torch.uint8).reshape(2, 1, 4, 4)
        >>> batch = augment_batch(images, Augment(crop=1), torch.Generator().manual_seed(0))
        >>> batch.shape, batch.dtype
        (torch.Size([2, 1, 4, 4]), torch.uint8)
    """
    return apply_numbers(images, augment, draw_numbers(len(images), generator))


def draw_numbers(count: int, generator: torch.Generator) -> Tensor:
    """Random numbers ``(count, 8)`` for images, the same number for every augmentation."""
    parts = (_NUMBERS, _COLORS)
    return torch.cat(
        [torch.rand(count, n, generator=generator, dtype=torch.float64) for n in parts], dim=1
    )


def apply_numbers(images: Tensor, augment: Augment, numbers: Tensor) -> Tensor:
    """Augment images by random ``numbers``, one row per image; the result is channels-last."""
    flip = numbers[:, 2] < 0.5 if augment.flip else torch.zeros(len(images), dtype=torch.bool)
    if augment.box is not None:
        return _resized_windows(images, augment.box, numbers, flip)
    return _windows(images, augment, numbers, flip)


def color_shift(numbers: Tensor, axes: Tensor, noise: float) -> Tensor:
    r"""What AlexNet's colour noise adds to every pixel of an image: ``(N, C)``, pixels from 0 to 1.

    .. math:: s_n = \sum_i \alpha_{n,i} \, \sigma_i p_i, \qquad
        \alpha_{n,i} \sim N(0, \text{noise}^2)

    with the principal axes p_i of the colours of all pixels and the standard deviations σ_i along
    them. The AlexNet paper has the variance σ_i² in place of σ_i, which would depend on the unit of
    a pixel; later implementations use σ_i.

    Args:
        numbers: of :func:`draw_numbers`.
        axes: ``(C, A)``, the axes σ_i p_i as columns: ``color_axes()`` of a data set.
        noise: the standard deviation of α.
    """
    uniform = numbers[:, _NUMBERS:][:, : axes.shape[1]].clamp(min=1e-12)  # at 0 it is infinite
    along: Tensor = noise * torch.special.ndtri(uniform)
    # No matrix product: its rounding may depend on the number of images, that is, of processes.
    return (along[:, None, :] * axes.to(uniform)).sum(2)


def square_box(height: int, width: int, numbers: Sequence[float]) -> Box:
    """The window of a square crop: top, left, height, width, in pixels."""
    vertical, horizontal, *_ = numbers
    side = min(height, width)
    free = (1 - SEEN_SHARE) * side
    top, left = (height - side) / 2 + vertical * free, (width - side) / 2 + horizontal * free
    return top, left, SEEN_SHARE * side, SEEN_SHARE * side


def crop_box(height: int, width: int, numbers: Sequence[float]) -> Box:
    """The window of a resized crop: top, left, height, width, in pixels.

    The area and the logarithm of the aspect ratio are uniform. A window that is too large is made
    smaller; torchvision would draw again, but this needs a fixed number of random numbers.
    """
    vertical, horizontal, _, area, shape, *_ = numbers
    pixels = (_LEAST_AREA + (1 - _LEAST_AREA) * area) * height * width
    ratio = math.exp((2 * shape - 1) * math.log(_WIDEST))
    high, wide = min(math.sqrt(pixels / ratio), height), min(math.sqrt(pixels * ratio), width)
    return vertical * (height - high), horizontal * (width - wide), high, wide


def _windows(images: Tensor, augment: Augment, numbers: Tensor, flip: Tensor) -> Tensor:
    """Pad, then cut and mirror with one gather of rows and columns."""
    N, _, H, W = images.shape
    crop = augment.crop
    mirror = augment.padding == "mirror"
    padded = F.pad(images, (crop, crop, crop, crop)) if crop and not mirror else images
    first = (numbers[:, :2] * (2 * crop + 1)).long()
    columns = torch.arange(W).expand(N, W)
    columns = torch.where(flip[:, None], W - 1 - columns, columns) + first[:, 1:]
    rows = torch.arange(H) + first[:, :1]
    if mirror:
        rows, columns = _mirrored(rows - crop, H), _mirrored(columns - crop, W)
    # Indices around a slice put the sliced axis last, which is the layout we need.
    crops = padded[torch.arange(N)[:, None, None], :, rows[:, :, None], columns[:, None, :]]
    return crops.permute(0, 3, 1, 2)


def _mirrored(places: Tensor, size: int) -> Tensor:
    """Places on a line of mirror images as places in the image: -1 is 0, ``size`` is size - 1."""
    places = places % (2 * size)
    return torch.where(places < size, places, 2 * size - 1 - places)


def _resized_windows(
    images: Tensor,
    box: DrawBox,
    numbers: Tensor,
    flip: Tensor,
) -> Tensor:
    """Sample the window of every image at the positions of the result, bilinearly."""
    _, _, H, W = images.shape
    boxes = torch.tensor([box(H, W, row) for row in numbers.tolist()], dtype=torch.float32)
    top, left, high, wide = (side[:, None] for side in boxes.T)
    columns = torch.where(flip[:, None], torch.arange(W - 1, -1, -1), torch.arange(W))
    # grid_sample's coordinates run from -1 to 1 between the outer edges of the image.
    y = 2 * (top + (torch.arange(H) + 0.5) * high / H) / H - 1
    x = 2 * (left + (columns + 0.5) * wide / W) / W - 1
    grid = torch.stack(torch.broadcast_tensors(x[:, None, :], y[:, :, None]), dim=-1)
    sampled = F.grid_sample(images.float(), grid, padding_mode="border", align_corners=False)
    if not images.is_floating_point():
        sampled = sampled.round_()
    return sampled.to(images.dtype).contiguous(memory_format=torch.channels_last)
