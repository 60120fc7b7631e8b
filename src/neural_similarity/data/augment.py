"""Random crops and mirror images, for a whole batch at a time.

A row of random numbers decides what happens to an image. The numbers are drawn for the whole batch
at once, and applied later, so that several processes can draw the same numbers and each apply its
own part.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["Augment", "apply_numbers", "augment_batch", "crop_box", "draw_numbers", "no_augment"]

#: Random numbers per image: vertical and horizontal position, mirror, area, aspect ratio.
_NUMBERS = 5

_LEAST_AREA, _WIDEST = 0.08, 4 / 3


@dataclass(frozen=True)
class Augment:
    """How training images are augmented.

    Args:
        crop: pad the image by this many zeros on each side, then crop a random window of the old
            size.
        flip: mirror a random half of the images, left to right.
        resized_crop: instead of ``crop``, crop a random window with 8% to 100% of the area and an
            aspect ratio between 3:4 and 4:3 and resize it, as is usual for photographs.
    """

    crop: int = 4
    flip: bool = True
    resized_crop: bool = False


no_augment = Augment(crop=0, flip=False)


def augment_batch(images: Tensor, augment: Augment, generator: torch.Generator) -> Tensor:
    """Augment every image of ``(N, C, H, W)`` on its own; shape and dtype stay the same.

    Example:
        >>> images = torch.arange(32, dtype=torch.uint8).reshape(2, 1, 4, 4)
        >>> batch = augment_batch(images, Augment(crop=1), torch.Generator().manual_seed(0))
        >>> batch.shape, batch.dtype
        (torch.Size([2, 1, 4, 4]), torch.uint8)
    """
    return apply_numbers(images, augment, draw_numbers(len(images), generator))


def draw_numbers(count: int, generator: torch.Generator) -> Tensor:
    """Random numbers for ``count`` images, the same number for every augmentation."""
    return torch.rand(count, _NUMBERS, generator=generator, dtype=torch.float64)


def apply_numbers(images: Tensor, augment: Augment, numbers: Tensor) -> Tensor:
    """Augment images by the random ``numbers`` ``(N, 5)``; the result is channels-last."""
    flip = numbers[:, 2] < 0.5 if augment.flip else torch.zeros(len(images), dtype=torch.bool)
    if augment.resized_crop:
        return _resized_windows(images, numbers, flip)
    return _windows(images, augment.crop, numbers, flip)


def crop_box(
    height: int, width: int, numbers: Sequence[float]
) -> tuple[float, float, float, float]:
    """The window of a resized crop: top, left, height, width, in pixels.

    The area and the logarithm of the aspect ratio are uniform. A window that is too large is made
    smaller; torchvision would draw again, but this needs a fixed number of random numbers.
    """
    vertical, horizontal, _, area, shape = numbers
    pixels = (_LEAST_AREA + (1 - _LEAST_AREA) * area) * height * width
    ratio = math.exp((2 * shape - 1) * math.log(_WIDEST))
    high, wide = min(math.sqrt(pixels / ratio), height), min(math.sqrt(pixels * ratio), width)
    return vertical * (height - high), horizontal * (width - wide), high, wide


def _windows(images: Tensor, crop: int, numbers: Tensor, flip: Tensor) -> Tensor:
    """Pad, then cut and mirror with one gather of rows and columns."""
    N, _, H, W = images.shape
    padded = F.pad(images, (crop, crop, crop, crop)) if crop else images
    first = (numbers[:, :2] * (2 * crop + 1)).long()
    columns = torch.arange(W).expand(N, W)
    columns = torch.where(flip[:, None], W - 1 - columns, columns) + first[:, 1:]
    rows = torch.arange(H) + first[:, :1]
    # Indices around a slice put the sliced axis last, which is the layout we need.
    picked = padded[torch.arange(N)[:, None, None], :, rows[:, :, None], columns[:, None, :]]
    return picked.permute(0, 3, 1, 2)


def _resized_windows(images: Tensor, numbers: Tensor, flip: Tensor) -> Tensor:
    """Sample the window of every image at the positions of the result, bilinearly."""
    _, _, H, W = images.shape
    boxes = torch.tensor([crop_box(H, W, row) for row in numbers.tolist()], dtype=torch.float32)
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
