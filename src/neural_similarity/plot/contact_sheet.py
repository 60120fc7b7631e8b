"""A contact sheet: a few images of every class, with its name, to see whether data is right."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ..data.extras import needs
from ..data.image_sets import FolderSet, ImageSet
from ..data.images import read_image
from ..errors import DataError

if TYPE_CHECKING:
    from PIL import Image, ImageDraw, ImageFont

__all__ = ["draw_contact_sheet"]

_SMALLEST, _LARGEST = 48, 96
_GAP, _ROWS = 4, 10
_LABEL, _TEXT = 140, 13
_PAPER, _INK, _FAINT = (255, 255, 255), (20, 20, 20), (110, 110, 110)


def draw_contact_sheet(
    dataset: ImageSet,
    path: str | os.PathLike[str],
    *,
    split: str = "",
    max_classes: int = 20,
    per_class: int = 8,
) -> None:
    """Write a PNG with a row for a class, ten rows a column; the file appears whole or not at all.

    Args:
        dataset: what to draw.
        path: the file; one that is there is replaced.
        split: which part of the set it is, for the title.
        max_classes: of more classes, so many are drawn, evenly spread over all.
        per_class: images of a class, evenly spread over all of it.
    """
    if not len(dataset) or max_classes < 1 or per_class < 1:
        raise DataError(
            f"draw_contact_sheet: expected at least one image, class and column, got "
            f"{len(dataset)} image(s), max_classes {max_classes}, per_class {per_class}."
        )
    with needs("pillow", "a contact sheet"):
        from PIL import Image, ImageDraw
    shown = _spread(dataset.num_classes, max_classes)
    cell = _cell(dataset)
    width = _LABEL + per_class * (cell[0] + _GAP)
    columns = -(-len(shown) // _ROWS)
    rows, top = -(-len(shown) // columns), 3 * _TEXT
    size = columns * (width + 4 * _GAP) + 2 * _GAP, top + rows * (cell[1] + _GAP) + _GAP
    sheet = Image.new("RGB", size, _PAPER)
    draw, font = ImageDraw.Draw(sheet), _font()
    draw.text((3 * _GAP, _TEXT), _title(dataset, split, len(shown)), _INK, font)
    for place, number in enumerate(shown):
        column, row = divmod(place, rows)
        left, high = 3 * _GAP + column * (width + 4 * _GAP), top + row * (cell[1] + _GAP)
        found = (dataset.labels == number).nonzero().flatten()
        _write(draw, font, dataset.classes[number], len(found), (left, high + cell[1] // 2))
        for step, chosen in enumerate(_spread(len(found), per_class)):
            corner = (left + _LABEL + step * (cell[0] + _GAP), high)
            sheet.paste(_image(dataset, int(found[chosen]), cell), corner)
    _save(sheet, Path(path))


def _spread(count: int, wanted: int) -> list[int]:
    """At most ``wanted`` of the numbers below ``count``, evenly spread."""
    if count <= wanted:
        return list(range(count))
    return torch.linspace(0, count - 1, wanted).round().int().tolist()


def _title(dataset: ImageSet, split: str, shown: int) -> str:
    few = f", {shown} of them here" if shown < dataset.num_classes else ""
    name = f"{dataset.name} {split}".rstrip()
    return f"{name}: {len(dataset):,} images, {dataset.num_classes:,} classes{few}"


def _cell(dataset: ImageSet) -> tuple[int, int]:
    """Width and height of an image on the sheet: small ones are enlarged, large ones reduced."""
    height, width = dataset.image_size
    longest = max(height, width)
    # A whole number keeps every pixel a square.
    scale = max(round(_SMALLEST / longest), 1) if longest < _LARGEST else _LARGEST / longest
    return max(round(width * scale), 1), max(round(height * scale), 1)


def _image(dataset: ImageSet, index: int, cell: tuple[int, int]) -> Image.Image:
    from PIL import Image

    if isinstance(dataset, FolderSet):
        pixels = read_image(dataset.paths[index], dataset.image_size)
    else:
        pixels = dataset.images[index]
    # A set of neither one nor three channels is shown by its first.
    pixels = pixels if len(pixels) == 3 else pixels[:1].expand(3, -1, -1)
    image = Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy())
    enlarged = cell[0] >= image.width
    return image.resize(cell, Image.Resampling.NEAREST if enlarged else Image.Resampling.LANCZOS)


def _write(
    draw: ImageDraw.ImageDraw,
    font: ImageFont.FreeTypeFont,
    name: str,
    count: int,
    place: tuple[int, int],
) -> None:
    """A class's name, cut to the room there is, over the number of its images."""
    shown, kept = name, len(name)
    while kept and draw.textlength(shown, font) > _LABEL - 2 * _GAP:
        kept -= 1  # from the middle: names of one alphabet or genus differ in their ends
        shown = name[: kept - kept // 2] + "…" + name[len(name) - kept // 2 :]
    left, middle = place
    draw.text((left, middle - 3), shown, _INK, font, anchor="ls")
    draw.text((left, middle + _TEXT), f"{count:,}", _FAINT, font, anchor="ls")


def _font() -> ImageFont.FreeTypeFont:
    """matplotlib's own font: it has letters of many scripts, and every machine has the same."""
    with needs("matplotlib", "a contact sheet"):
        import matplotlib
    from PIL import ImageFont

    file = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"
    return ImageFont.truetype(str(file), _TEXT)


def _save(sheet: Image.Image, path: Path) -> None:
    part = path.with_name(path.name + ".part")
    try:
        sheet.save(part, format="PNG")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
