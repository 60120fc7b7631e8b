"""Which characters are classes, and in which faces each of them is drawn.

A face is one font file. A character is a class if enough faces have it and it does not look like an
earlier class: Latin A, Greek Α and Cyrillic А are one class, and so are c and C, because every
glyph is scaled to the same size.
"""

from __future__ import annotations

import functools
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ..extras import needs

if TYPE_CHECKING:
    from PIL.ImageFont import FreeTypeFont

__all__ = ["CANVAS", "Glyphs", "choose_glyphs", "font_files"]

#: Side of the square that holds a glyph, and the longer side of its ink.
CANVAS, _INK = 56, 40
_COARSE = 14

#: In Computer Modern, other codes than these stand for other characters.
_ASCII = frozenset(map(ord, "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"))
_PATTERNS = ("DejaVu*.ttf", "STIXGeneral*.ttf", "cm[br]10.ttf", "cm[st][ist]10.ttf")

#: Patterns of dots, lines, blocks and dice, which cannot be recognised at this size.
_LEFT_OUT = ((0x2500, 0x259F), (0x2680, 0x268F), (0x2800, 0x28FF))
_LAST = 0x2DFF

_FEWEST_FACES = 4
_MOST_SLENDER = 6.0
#: If the cosine of two coarse glyphs is above this, they count as one.
_ALIKE = 0.8
#: Letters, digits, symbols.
_CATEGORIES = frozenset(("Lu", "Ll", "Lo", "Nd", "Sc", "Sm", "So"))


@dataclass(frozen=True)
class Glyphs:
    """Characters and their drawings.

    Args:
        characters: one per class, sorted.
        faces: for every class, the indices of its glyphs in ``drawings``, one per face.
        drawings: uint8 ``(M, 56, 56)``, bright ink in the middle.
    """

    characters: tuple[str, ...]
    faces: tuple[tuple[int, ...], ...]
    drawings: Tensor


def font_files() -> list[Path]:
    """The fonts of matplotlib that are used here, sorted."""
    with needs("matplotlib", "the data set 'glyphs'"):
        import matplotlib
    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    return sorted(path for pattern in _PATTERNS for path in folder.glob(pattern))


def choose_glyphs(fonts: Sequence[Path]) -> Glyphs:
    """Draw all characters of the fonts, and keep those that can be distinguished."""
    codes = [_codes(path) for path in fonts]
    face_counts = Counter(code for font_codes in codes for code in font_codes)
    candidates = {code for code, faces in face_counts.items() if faces >= _FEWEST_FACES}
    glyphs: dict[int, list[np.ndarray]] = {code: [] for code in sorted(candidates)}
    for path, font_codes in zip(fonts, codes, strict=True):
        for code in sorted(font_codes & candidates):
            image = _draw(path, code)
            if image is not None:
                glyphs[code].append(image)
    return _distinct(glyphs)


def _distinct(glyphs: dict[int, list[np.ndarray]]) -> Glyphs:
    """Go through the characters in order; keep glyphs that look like none of the earlier ones."""
    most = sum(map(len, glyphs.values()))
    drawings = np.empty((most, CANVAS, CANVAS), np.uint8)
    sketches = np.empty((most, _COARSE**2), "f4")
    count, characters, faces = 0, [], []
    for code, images in glyphs.items():
        if len(images) < _FEWEST_FACES:
            continue
        stack = np.stack(images)
        directions = _sketches(stack)
        new = (directions @ sketches[:count].T).max(1, initial=-1) <= _ALIKE
        if new.sum() < _FEWEST_FACES:
            continue
        after = count + int(new.sum())
        drawings[count:after], sketches[count:after] = stack[new], directions[new]
        characters.append(chr(code))
        faces.append(tuple(range(count, after)))
        count = after
    return Glyphs(tuple(characters), tuple(faces), torch.from_numpy(drawings[:count].copy()))


def _sketches(images: np.ndarray) -> np.ndarray:
    """Each glyph at low resolution, as a unit vector."""
    step = CANVAS // _COARSE
    coarse = images.reshape(-1, _COARSE, step, _COARSE, step).mean((2, 4), dtype=np.float32)
    flat = coarse.reshape(len(images), -1)
    centred = flat - flat.mean(1, keepdims=True)
    directions: np.ndarray = centred / np.linalg.norm(centred, axis=1, keepdims=True)
    return directions


def _codes(path: Path) -> set[int]:
    """The characters of a font that may be classes."""
    from matplotlib.ft2font import FT2Font

    codes = set(FT2Font(str(path)).get_charmap())
    if path.name.startswith("cm"):
        codes &= _ASCII
    return {code for code in codes if _may_be_class(code)}


def _may_be_class(code: int) -> bool:
    """Whether it is a letter, digit or symbol without parts; a letter with an accent has two."""
    if code > _LAST or any(first <= code <= last for first, last in _LEFT_OUT):
        return False
    character = chr(code)
    return unicodedata.category(character) in _CATEGORIES and not unicodedata.decomposition(
        character
    )


def _draw(path: Path, code: int) -> np.ndarray | None:
    """A character in the middle of a square, its ink scaled to one size."""
    from PIL import Image

    mask = _font(path).getmask(chr(code), mode="L")
    glyph = Image.frombytes("L", mask.size, bytes(mask))
    box = glyph.getbbox()
    if box is None:
        return None
    width, height = box[2] - box[0], box[3] - box[1]
    if max(width, height) > _MOST_SLENDER * min(width, height):
        return None
    scale = _INK / max(width, height)
    size = max(round(width * scale), 1), max(round(height * scale), 1)
    canvas = Image.new("L", (CANVAS, CANVAS))
    resized = glyph.resize(size, Image.Resampling.BILINEAR, box=box)
    canvas.paste(resized, ((CANVAS - size[0]) // 2, (CANVAS - size[1]) // 2))
    return np.array(canvas)


@functools.cache
def _font(path: Path) -> FreeTypeFont:
    with needs("pillow", "the data set 'glyphs'"):
        from PIL import ImageFont
    # The basic layout: the result of the other one depends on the machine.
    return ImageFont.truetype(str(path), 64, layout_engine=ImageFont.Layout.BASIC)
