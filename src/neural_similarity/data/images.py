"""Image files: decoded, turned upright, in colour, and brought to one size."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ..errors import DataError
from ._extra import needs
from .augment import crop_box

if TYPE_CHECKING:
    from PIL import Image

__all__ = ["EXTENSIONS", "decode_error", "quietly", "read_image"]

#: What the names of image files end in, in lower case.
EXTENSIONS = frozenset((".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"))

#: How much of the shorter side is seen in evaluation: 224 of 256, as is usual.
_CENTRE = 0.875
_ORIENTATION = 0x0112


def read_image(path: Path, size: tuple[int, int], numbers: Sequence[float] | None = None) -> Tensor:
    """The image in a file as uint8 ``(3, H, W)``.

    Args:
        path: the file.
        size: height and width to bring it to.
        numbers: the random numbers of a resized crop; without them the middle is cut out, seven
            eighths of the shorter side.
    """
    try:
        with quietly(), _opened(path) as image:
            height, width = _upright_size(image)
            top, left, high, wide = _window(height, width, size, numbers)
            # A JPEG decodes faster to a half, a quarter or an eighth of its size. Twice the
            # pixels wanted are enough that the result hardly changes.
            scale = min(high / size[0], wide / size[1]) / 2
            if scale > 1:
                image.draft("RGB", (int(image.width / scale) + 1, int(image.height / scale) + 1))
            upright = _upright(image)
            down, across = upright.height / height, upright.width / width
            box = (left * across, top * down, (left + wide) * across, (top + high) * down)
            resized = upright.resize(
                (size[1], size[0]), resample=_bilinear(), box=_inside(box, upright)
            )
    except _TROUBLE as error:
        raise DataError(
            f"{path}: expected an image that can be decoded, got {_reason(error)}. "
            f"Remove the file or get it again."
        ) from error
    return torch.from_numpy(np.array(resized)).permute(2, 0, 1)


def decode_error(path: Path) -> str | None:
    """Why a file cannot be decoded, or nothing if it can; every byte of it is read.

    For many threads, inside of one :func:`quietly`.
    """
    try:
        if not path.stat().st_size:
            return "an empty file"
        with _opened(path) as image:
            image.draft("RGB", (1, 1))
            image.load()
    except _TROUBLE as error:
        return _reason(error)
    return None


@contextmanager
def quietly() -> Iterator[None]:
    """Without Pillow's warnings, of damaged EXIF data for instance, which is then not used.

    Not to be entered by several threads at once.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


#: What Pillow raises for damaged files: of many kinds, as each format has its own reader.
_TROUBLE = (OSError, SyntaxError, ValueError, EOFError, TypeError, MemoryError, ArithmeticError,
            LookupError, RuntimeError)  # fmt: skip


@contextmanager
def _opened(path: Path) -> Iterator[Image.Image]:
    with needs("pillow", "image files"):
        from PIL import Image
    try:
        with Image.open(path) as image:
            yield image
    except Image.DecompressionBombError as error:
        raise ValueError(str(error)) from error


def _bilinear() -> Image.Resampling:
    from PIL import Image

    return Image.Resampling.BILINEAR


def _upright_size(image: Image.Image) -> tuple[int, int]:
    """Height and width once the image is turned as its camera was held."""
    lying = image.getexif().get(_ORIENTATION, 1) in (5, 6, 7, 8)
    return (image.width, image.height) if lying else (image.height, image.width)


def _upright(image: Image.Image) -> Image.Image:
    """The image as it was seen, in red, green and blue."""
    from PIL import Image, ImageOps

    turned = ImageOps.exif_transpose(image)
    if turned.mode.startswith("I"):  # 16 bits of grey; converting would cut off, not scale
        grey = np.asarray(turned).astype(np.int64) >> 8
        return Image.fromarray(grey.clip(0, 255).astype(np.uint8)).convert("RGB")
    if turned.mode == "P":  # colours of a palette may be transparent
        turned = turned.convert("RGBA")
    return turned.convert("RGB")


def _window(
    height: int, width: int, size: tuple[int, int], numbers: Sequence[float] | None
) -> tuple[float, float, float, float]:
    """Which part of an image is resized: top, left, height, width."""
    if numbers is not None:
        return crop_box(height, width, numbers)
    side = _CENTRE * min(height / size[0], width / size[1])
    high, wide = side * size[0], side * size[1]
    return (height - high) / 2, (width - wide) / 2, high, wide


def _inside(
    box: tuple[float, float, float, float], image: Image.Image
) -> tuple[float, float, float, float]:
    """The box without what rounding put outside of the image."""
    left, top, right, bottom = box
    return max(left, 0.0), max(top, 0.0), min(right, image.width), min(bottom, image.height)


def _reason(error: BaseException) -> str:
    """One line of what Pillow said, without the path, which the caller gives."""
    said = str(error).splitlines()[0] if str(error) else type(error).__name__
    return "no image that Pillow knows" if "cannot identify image" in said else said
