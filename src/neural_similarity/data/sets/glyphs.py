"""Characters of many scripts, drawn with the fonts that matplotlib ships: grey images of 28 × 28.

A few-shot data set that needs no download: about 860 classes of twenty images, much like Omniglot.
An image is a glyph of one of several faces, made bolder, rotated, slanted, stretched and shifted,
with random contrast and noise, all from a fixed seed.
"""

from __future__ import annotations

import hashlib
import math
import unicodedata
from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from .._cache import cached_set, key_of
from ..extras import needs
from ..image_sets import ImageSet, MemorySet
from ..registry import DatasetInfo, Request, register_dataset
from ._glyph_classes import Glyphs, choose_glyphs, font_files

__all__ = ["INFO", "INSTANCES", "draw_glyphs"]

INFO = DatasetInfo(
    name="glyphs",
    kind="few-shot",
    splits=("train", "val", "test"),
    description="Characters of many scripts, 64 / 16 / 20% of about 860 classes, 20 grey images "
    "of each, 28 × 28, bright strokes.",
    layout="it needs no files: the images are drawn at first use and cached",
    home="fonts that matplotlib ships: DejaVu, STIX, Computer Modern",
)

#: Images per class.
INSTANCES = 20

_SIDE = 28
_SEED = 2019
_SHARES = {"train": 0.64, "val": 0.16, "test": 0.20}
#: Increase it whenever the same fonts are drawn differently.
_VERSION = 1
_AT_A_TIME = 2048


def draw_glyphs(glyphs: Glyphs, instances: int, seed: int) -> MemorySet:
    """``instances`` images of every class, class by class."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.cat([_take_turns(faces, instances, generator) for faces in glyphs.faces])
    pieces = [_vary(glyphs.drawings[piece], generator) for piece in rows.split(_AT_A_TIME)]
    labels = torch.arange(len(glyphs.characters)).repeat_interleave(instances)
    names = tuple(unicodedata.name(character).lower() for character in glyphs.characters)
    return MemorySet.of(INFO.name, torch.cat(pieces), labels, names)


def _load(request: Request) -> ImageSet:
    fonts = font_files()
    with needs("pillow", "the data set 'glyphs'"):
        from PIL import features
    contents = [hashlib.sha256(path.read_bytes()).hexdigest() for path in fonts]
    freetype, unicode = features.version("freetype2"), unicodedata.unidata_version
    key = key_of((_VERSION, _SEED, INSTANCES, contents, freetype, unicode))
    whole = cached_set(INFO.name, key, lambda: draw_glyphs(choose_glyphs(fonts), INSTANCES, _SEED))
    return _classes_of(whole, request.split)


def _classes_of(whole: MemorySet, split: str) -> MemorySet:
    """The classes of a split with new labels; the fingerprint is that of the whole set."""
    order = torch.randperm(whole.num_classes, generator=torch.Generator().manual_seed(_SEED))
    bounds = [0]
    for share in _SHARES.values():
        bounds.append(bounds[-1] + round(share * whole.num_classes))
    bounds[-1] = whole.num_classes
    place = list(_SHARES).index(split)
    class_numbers = order[bounds[place] : bounds[place + 1]].sort().values
    rows = torch.isin(whole.labels, class_numbers).nonzero().flatten()
    return replace(
        whole,
        images=whole.images[rows],
        labels=torch.searchsorted(class_numbers, whole.labels[rows]),
        classes=tuple(whole.classes[n] for n in class_numbers.tolist()),
    )


def _take_turns(faces: tuple[int, ...], instances: int, generator: torch.Generator) -> Tensor:
    """Faces in random order, each equally often, as far as possible."""
    shuffled = torch.tensor(faces)[torch.randperm(len(faces), generator=generator)]
    return shuffled.repeat(-(-instances // len(faces)))[:instances]


def _vary(drawings: Tensor, generator: torch.Generator) -> Tensor:
    """Glyphs ``(N, 56, 56)`` as images ``(N, 1, 28, 28)``, each with random variation."""

    def between(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(len(drawings), 1, 1, 1, generator=generator)

    ink = drawings.float().unsqueeze(1) / 255
    bolder = F.max_pool2d(ink, 3, stride=1, padding=1)
    # Blurred before the size is halved, so that thin strokes do not fall between pixels.
    soft = F.avg_pool2d(torch.lerp(ink, bolder, between(0, 1)), 3, stride=1, padding=1)
    strokes = _move(soft, between)
    paper, pen = between(0, 0.2), between(0.65, 1)
    noise = between(0, 0.08) * torch.randn(strokes.shape, generator=generator)
    return (255 * (torch.lerp(paper, pen, strokes) + noise)).round_().clamp_(0, 255).to(torch.uint8)


def _move(ink: Tensor, between: Callable[[float, float], Tensor]) -> Tensor:
    """Rotate, slant, stretch and shift.

    The map goes from positions in the result to positions in the drawing. Coordinates run from -1
    to 1; ink fills 5/7 of that, which leaves room for the corners.
    """
    turn, slant = between(-math.pi / 12, math.pi / 12), between(-0.25, 0.25)
    wide, high = between(0.95, 1.3), between(0.95, 1.3)
    cos, sin = turn.cos(), turn.sin()
    places = (torch.arange(_SIDE) + 0.5) * (2 / _SIDE) - 1
    x = places.reshape(1, 1, 1, -1) - between(-0.1, 0.1)
    y = places.reshape(1, 1, -1, 1) - between(-0.1, 0.1)
    across, down = cos * x + sin * y, cos * y - sin * x
    grid = torch.stack((wide * (across + slant * down), high * down), dim=-1).squeeze(1)
    return F.grid_sample(ink, grid, align_corners=False)


register_dataset(INFO, _load)
