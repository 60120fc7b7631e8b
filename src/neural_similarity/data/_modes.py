"""Convert every image mode of Pillow to RGB with 8 bits per channel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from PIL import Image

__all__ = ["in_colour"]

#: Formats without 32-bit values: where older versions of Pillow read mode I, the values have 16.
_SIXTEEN_BITS = ("PNG", "PPM")


def in_colour(
    image: Image.Image, file_format: str | None, bits: int = 16, zero_is_white: bool = False
) -> Image.Image:
    """The image in mode RGB, on white where it is transparent: invisible colours are ignored.

    ``bits`` and ``zero_is_white`` describe grey values in mode I;16.

    Grey values with more than 8 bits are scaled by their range: floating-point numbers from 0 to 1
    or from 0 to 255, integers of 8 or 16 bits. Other ranges raise a ValueError.
    """
    from PIL import Image

    if image.mode.startswith(("I", "F")):  # convert() would clip, not scale
        sixteen = image.mode != "I" or file_format in _SIXTEEN_BITS
        values = np.asarray(image)
        if image.mode.startswith("I;16"):  # Pillow leaves 12 bits as they are, and their sense
            values = values << max(0, 16 - bits)
            values = ~values if zero_is_white else values
        grey, invisible = _in_8_bits(values, sixteen), image.info.get("transparency")
        if isinstance(invisible, int):  # one transparent value
            grey = np.where(values == invisible, np.uint8(255), grey)
        return Image.fromarray(grey).convert("RGB")
    if _may_be_transparent(image):
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert("RGB")


def _may_be_transparent(image: Image.Image) -> bool:
    """Whether there is an alpha channel, a palette, or one transparent colour."""
    if image.mode in ("1", "L", "RGB"):
        return "transparency" in image.info
    return image.mode in ("LA", "P", "PA", "RGBA")


def _in_8_bits(grey: NDArray[Any], sixteen: bool) -> NDArray[np.uint8]:
    low, high = grey.min(), grey.max()
    if np.issubdtype(grey.dtype, np.floating):
        if low >= 0 and high <= 255:
            return np.asarray(np.round(grey * 255 if high <= 1 else grey), np.uint8)
        raise ValueError(
            f"values from {low:.4g} to {high:.4g}, which fit neither 0 to 1 nor 0 to 255"
        )
    if low < 0 or high > 65535:
        raise ValueError(f"values from {low} to {high}, which fit neither 8 nor 16 bits")
    return np.asarray(grey >> 8 if sixteen or high > 255 else grey, np.uint8)
