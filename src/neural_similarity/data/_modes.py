"""From every mode that Pillow reads to red, green and blue of 8 bits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from PIL import Image

__all__ = ["in_colour"]

#: Formats without 32 bits: what older versions of Pillow read from them as mode I has 16.
_SIXTEEN_BITS = ("PNG", "PPM")


def in_colour(image: Image.Image, file_format: str | None) -> Image.Image:
    """The image in mode RGB, on white where it is transparent: colours nobody sees do not count.

    Grey values of more than 8 bits are scaled by their range: floating point numbers of 0 to 1 or
    of 0 to 255, integers of 8 or of 16 bits. ValueError says where it is none of these.
    """
    from PIL import Image

    if image.mode.startswith(("I", "F")):  # converting would cut off, not scale
        sixteen = image.mode != "I" or file_format in _SIXTEEN_BITS
        return Image.fromarray(_in_8_bits(np.asarray(image), sixteen)).convert("RGB")
    if _may_be_transparent(image):
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert("RGB")


def _may_be_transparent(image: Image.Image) -> bool:
    """By a channel of its own, by colours of a palette, or by one colour that is."""
    if image.mode in ("L", "RGB"):
        return "transparency" in image.info
    return image.mode in ("LA", "P", "PA", "RGBA")


def _in_8_bits(grey: NDArray[Any], sixteen: bool) -> NDArray[np.uint8]:
    low, high = grey.min(), grey.max()
    if np.issubdtype(grey.dtype, np.floating):
        if low >= 0 and high <= 255:
            return np.asarray(np.round(grey * 255 if high <= 1 else grey), np.uint8)
        raise ValueError(f"values from {low:.4g} to {high:.4g}, neither of 0 to 1 nor of 0 to 255")
    if low < 0 or high > 65535:
        raise ValueError(f"values from {low} to {high}, neither of 8 bits nor of 16")
    return np.asarray(grey >> 8 if sixteen or high > 255 else grey, np.uint8)
