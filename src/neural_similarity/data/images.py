"""Read image files: decode them, turn them upright, convert to RGB and resize."""

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

from .._io import check_regular
from ..errors import DataError
from ._modes import in_colour
from ._progress import progress
from .extras import needs
from .formats import missing_plugin, readable_formats

if TYPE_CHECKING:
    from PIL import Image

__all__ = [
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

#: The share of the shorter side that is used in evaluation: 224 of 256, as is usual.
SEEN_SHARE = 0.875
_ORIENTATION = 0x0112
_BITS, _PHOTOMETRIC = 258, 262  # tags of a TIFF
_TURNS = {
    2: "FLIP_LEFT_RIGHT", 3: "ROTATE_180", 4: "FLIP_TOP_BOTTOM", 5: "TRANSPOSE", 6: "ROTATE_270",
    7: "TRANSVERSE", 8: "ROTATE_90",
}  # fmt: skip
"""What turns an image of this EXIF orientation upright: names of ``PIL.Image.Transpose``."""

Result = TypeVar("Result")


#: The part of an image of this height and width that is used: top, left, height, width.
Window = Callable[[int, int], tuple[float, float, float, float]]


def whole(height: int, width: int) -> tuple[float, float, float, float]:
    """The whole image."""
    return 0.0, 0.0, height, width


def middle(height: int, width: int) -> tuple[float, float, float, float]:
    """The square in the middle, seven eighths of the shorter side, as used in evaluation."""
    side = SEEN_SHARE * min(height, width)
    return (height - side) / 2, (width - side) / 2, side, side


def read_image(path: Path, size: tuple[int, int], window: Window = middle) -> Tensor:
    """A window of the image in a file, resized to height and width: uint8 ``(3, H, W)``.

    Call it inside :func:`quietly`, which hides Pillow's warnings.
    """
    try:
        with _open_image(path) as image:
            whole_size = None
            if image.format in _FAST_FORMATS:
                whole_size = _upright_size(image)
                _decode_small(image, window(*whole_size), size)
            turned = upright(image)
            # The size of other formats is known now: TIFF and HEIC turn it early.
            height, width = whole_size or (turned.height, turned.width)
            top, left, high, wide = window(height, width)
            down, across = turned.height / height, turned.width / width
            box = (left * across, top * down, (left + wide) * across, (top + high) * down)
            resized = turned.resize(
                (size[1], size[0]), resample=_bilinear(), box=_inside(box, turned)
            )
    except _DECODE_ERRORS as error:
        raise _undecodable(path, error) from error
    return torch.from_numpy(np.array(resized)).permute(2, 0, 1)


def decode_image(path: Path) -> Image.Image:
    """The whole image in a file at its own size, upright and in colour.

    Unlike :func:`read_image` it takes no shortcut, so other programs get the same pixels.
    """
    try:
        with _open_image(path) as image:
            return upright(image)
    except _DECODE_ERRORS as error:
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
    """The results of a function for all files, in order; Pillow releases the GIL to decode."""
    with needs("pillow", "image files"):
        import PIL.Image  # noqa: F401
    with quietly(), ThreadPoolExecutor(os.cpu_count()) as pool:
        # In pieces, so that an error stops the work soon and few results wait in memory.
        pieces = (paths[first : first + 1024] for first in range(0, len(paths), 1024))
        results = (result for piece in pieces for result in pool.map(function, piece))
        yield from progress(results, len(paths), what)


def decode_error(path: Path) -> str | None:
    """Why a file cannot be decoded, or None if it can; the whole file is read.

    Many threads may call it inside one :func:`quietly`.
    """
    try:
        check_regular(path)
        if not path.stat().st_size:
            return "an empty file"
        with _open_image(path) as image:
            if image.format in _FAST_FORMATS:
                image.draft("RGB", (1, 1))
            upright(image)
    except _DECODE_ERRORS as error:
        return _reason(error, path)
    return None


def upright(image: Image.Image) -> Image.Image:
    """The image turned upright, in RGB, on white where it is transparent."""
    from PIL import Image

    image.load()  # some formats have their orientation behind the pixels
    turn = _TURNS.get(image.getexif().get(_ORIENTATION, 1))
    # PIL.ImageOps.exif_transpose also writes the EXIF data again, and fails where a tag is wrong.
    turned = image if turn is None else image.transpose(Image.Transpose[turn])
    done = in_colour(turned, image.format, *_grey_bits(image))
    done.info = {}  # its EXIF data would turn it again
    done.getexif().clear()
    return done


def _grey_bits(image: Image.Image) -> tuple[int, bool]:
    """The bits of the grey values of a TIFF, and whether zero is white; 16 bits otherwise."""
    tags = getattr(image, "tag_v2", {})
    bits, kind = tags.get(_BITS, (16,)), tags.get(_PHOTOMETRIC, 1)
    return (bits[0] if isinstance(bits, tuple) else bits), kind == 0


@contextmanager
def quietly() -> Iterator[None]:
    """Hide Pillow's warnings, such as those about damaged EXIF data, which Pillow then ignores.

    Several threads must not enter it at once.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


#: Formats that are read to the end at any size; a HEIC file would only show its thumbnail.
_FAST_FORMATS = ("JPEG", "MPO")

#: What Pillow raises for damaged files: each format has its own reader with its own errors.
_DECODE_ERRORS = (
    OSError, SyntaxError, ValueError, EOFError, TypeError, MemoryError, ArithmeticError,
    LookupError, RuntimeError, AttributeError, AssertionError, struct.error, zlib.error,
)  # fmt: skip


@contextmanager
def _open_image(path: Path) -> Iterator[Image.Image]:
    from PIL import Image

    check_regular(path)
    try:
        with Image.open(path, formats=readable_formats()) as image:
            yield image
    except Image.DecompressionBombError as error:
        raise ValueError(str(error)) from error


def _decode_small(
    image: Image.Image, part: tuple[float, float, float, float], size: tuple[int, int]
) -> None:
    """Let a JPEG decode to a half, a quarter or an eighth of its size, which is faster.

    The part that is used keeps twice the required resolution, so the result hardly changes.
    """
    scale = min(part[2] / size[0], part[3] / size[1]) / 2
    if scale > 1:
        image.draft("RGB", (int(image.width / scale) + 1, int(image.height / scale) + 1))


def _bilinear() -> Image.Resampling:
    from PIL import Image

    return Image.Resampling.BILINEAR


def _upright_size(image: Image.Image) -> tuple[int, int]:
    """Height and width of the image after it is turned upright."""
    is_turned = image.getexif().get(_ORIENTATION, 1) in (5, 6, 7, 8)
    return (image.width, image.height) if is_turned else (image.height, image.width)


def _inside(
    box: tuple[float, float, float, float], image: Image.Image
) -> tuple[float, float, float, float]:
    """The box, clipped to the image: rounding may put it outside."""
    left, top, right, bottom = box
    return max(left, 0.0), max(top, 0.0), min(right, image.width), min(bottom, image.height)


def _undecodable(path: Path, error: BaseException) -> DataError:
    remedy = "Remove the file, or replace it by an intact one"
    if package := missing_plugin(path):
        remedy = f"Install the package {package}, or convert the file to JPEG"
    return DataError(
        f"{path}: expected an image that can be decoded, got {_reason(error, path)}. {remedy}."
    )


def _reason(error: BaseException, path: Path) -> str:
    """One line of Pillow's message, without the path, which the caller adds."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    if "cannot identify image" not in text:
        return text
    if package := missing_plugin(path):
        return f"a format that needs the package {package}"
    return "no image format that we read"
