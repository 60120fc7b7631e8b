"""Image files: decoded, turned upright, in colour, and brought to one size."""

from __future__ import annotations

import os
import struct
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch
from torch import Tensor

from ..errors import DataError
from ._modes import in_colour
from ._progress import progress
from .extras import needs

if TYPE_CHECKING:
    from PIL import Image

__all__ = [
    "EXTENSIONS",
    "SEEN_SHARE",
    "Window",
    "decode_error",
    "decode_image",
    "in_threads",
    "middle",
    "quietly",
    "read_image",
    "read_images",
    "upright",
    "whole",
]

#: What the names of image files end in, in lower case; some need more than Pillow has.
EXTENSIONS = (
    ".avif", ".bmp", ".gif", ".heic", ".heif", ".jfif", ".jp2", ".jpe", ".jpeg", ".jpg", ".jxl",
    ".pgm", ".png", ".ppm", ".tga", ".tif", ".tiff", ".webp",
)  # fmt: skip

#: Of the shorter side, in evaluation: 224 of 256, as is usual.
SEEN_SHARE = 0.875
_ORIENTATION = 0x0112

Result = TypeVar("Result")


#: Which part of an image of this height and width is seen: top, left, height, width.
Window = Callable[[int, int], tuple[float, float, float, float]]


def whole(height: int, width: int) -> tuple[float, float, float, float]:
    """The window that is the image."""
    return 0.0, 0.0, height, width


def middle(height: int, width: int) -> tuple[float, float, float, float]:
    """The square in the middle, seven eighths of the shorter side: what is seen in evaluation."""
    side = SEEN_SHARE * min(height, width)
    return (height - side) / 2, (width - side) / 2, side, side


def read_image(path: Path, size: tuple[int, int], window: Window = middle) -> Tensor:
    """A window of the image in a file, resized to height and width: uint8 ``(3, H, W)``.

    Best called inside of :func:`quietly`.
    """
    try:
        with _opened(path) as image:
            height, width = _upright_size(image)
            top, left, high, wide = window(height, width)
            # A JPEG decodes faster to a half, a quarter or an eighth of its size. Twice the
            # pixels wanted are enough that the result hardly changes.
            scale = min(high / size[0], wide / size[1]) / 2
            if scale > 1:
                image.draft("RGB", (int(image.width / scale) + 1, int(image.height / scale) + 1))
            turned = upright(image)
            down, across = turned.height / height, turned.width / width
            box = (left * across, top * down, (left + wide) * across, (top + high) * down)
            resized = turned.resize(
                (size[1], size[0]), resample=_bilinear(), box=_inside(box, turned)
            )
    except _TROUBLE as error:
        raise _undecodable(path, error) from error
    return torch.from_numpy(np.array(resized)).permute(2, 0, 1)


def decode_image(path: Path) -> Image.Image:
    """The whole image in a file at its own size, upright and in colour.

    Unlike :func:`read_image` it takes no short cut, so that other programs get the same pixels.
    """
    try:
        with _opened(path) as image:
            return upright(image)
    except _TROUBLE as error:
        raise _undecodable(path, error) from error


def read_images(paths: Sequence[Path], side: int, what: str, channels: int = 3) -> Tensor:
    """Whole images, each resized to a square: uint8 ``(N, channels, side, side)``."""
    images = torch.empty(len(paths), channels, side, side, dtype=torch.uint8)

    def read(path: Path) -> Tensor:
        return read_image(path, (side, side), whole)[:channels]

    for row, image in enumerate(in_threads(read, paths, what)):
        images[row] = image
    return images


def in_threads(
    function: Callable[[Path], Result], paths: Sequence[Path], what: str
) -> Iterator[Result]:
    """What a function makes of every file, in order; Pillow decodes without holding up others."""
    with needs("pillow", "image files"):
        import PIL.Image  # noqa: F401
    with quietly(), ThreadPoolExecutor(os.cpu_count()) as pool:
        # In pieces, so that an error ends the work soon and results do not pile up.
        pieces = (paths[first : first + 1024] for first in range(0, len(paths), 1024))
        results = (result for piece in pieces for result in pool.map(function, piece))
        yield from progress(results, len(paths), what)


def decode_error(path: Path) -> str | None:
    """Why a file cannot be decoded, or nothing if it can; every byte of it is read.

    For many threads, inside of one :func:`quietly`.
    """
    try:
        if not path.stat().st_size:
            return "an empty file"
        with _opened(path) as image:
            image.draft("RGB", (1, 1))
            upright(image)
    except _TROUBLE as error:
        return _reason(error)
    return None


def upright(image: Image.Image) -> Image.Image:
    """The image as it was seen, in red, green and blue, on white where it is transparent."""
    from PIL import ImageOps

    return in_colour(ImageOps.exif_transpose(image), image.format)


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
            LookupError, RuntimeError, struct.error, zlib.error)  # fmt: skip


@contextmanager
def _opened(path: Path) -> Iterator[Image.Image]:
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


def _inside(
    box: tuple[float, float, float, float], image: Image.Image
) -> tuple[float, float, float, float]:
    """The box without what rounding put outside of the image."""
    left, top, right, bottom = box
    return max(left, 0.0), max(top, 0.0), min(right, image.width), min(bottom, image.height)


def _undecodable(path: Path, error: BaseException) -> DataError:
    return DataError(
        f"{path}: expected an image that can be decoded, got {_reason(error)}. "
        f"Remove the file or get it again."
    )


def _reason(error: BaseException) -> str:
    """One line of what Pillow said, without the path, which the caller gives."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    said = str(error).splitlines()[0] if str(error) else type(error).__name__
    return "no image that Pillow knows" if "cannot identify image" in said else said
