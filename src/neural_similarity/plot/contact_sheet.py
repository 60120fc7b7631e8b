"""A contact sheet: a few images of every class with its name, to check a data set by eye."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from .._io import whole_file
from ..data.extras import needs
from ..data.image_sets import FolderSet, ImageSet
from ..data.images import quietly, read_image
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
    """Write a PNG with one row per class, ten rows per column, atomically.

    Args:
        dataset: the images.
        path: the PNG file; an existing file is overwritten.
        split: the name of the split, for the title.
        max_classes: the most classes to draw; if there are more, an evenly spaced selection.
        per_class: images per class, evenly spaced over the class.
    """
    if not len(dataset) or max_classes < 1 or per_class < 1:
        raise DataError(
            f"draw_contact_sheet: expected at least one image, class and column, got "
            f"{len(dataset)} image(s), max_classes {max_classes}, per_class {per_class}."
        )
    with needs("pillow", "a contact sheet"):
        from PIL import Image, ImageDraw
    classes = _spread(dataset.num_classes, max_classes)
    cell = _cell(dataset)
    width = _LABEL + per_class * (cell[0] + _GAP)
    columns = -(-len(classes) // _ROWS)
    rows, top = -(-len(classes) // columns), 3 * _TEXT
    size = columns * (width + 4 * _GAP) + 2 * _GAP, top + rows * (cell[1] + _GAP) + _GAP
    sheet = Image.new("RGB", size, _PAPER)
    draw, font = ImageDraw.Draw(sheet), _font()
    draw.text((3 * _GAP, _TEXT), _title(dataset, split, len(classes)), _INK, font)
    for position, label in enumerate(classes):
        column, row = divmod(position, rows)
        left, high = 3 * _GAP + column * (width + 4 * _GAP), top + row * (cell[1] + _GAP)
        indices = (dataset.labels == label).nonzero().flatten()
        _write(draw, font, dataset.classes[label], len(indices), (left, high + cell[1] // 2))
        for step, index in enumerate(indices[_spread(len(indices), per_class)].tolist()):
            corner = (left + _LABEL + step * (cell[0] + _GAP), high)
            sheet.paste(_image(dataset, index, cell), corner)
    _save(sheet, Path(path))


def _spread(count: int, most: int) -> list[int]:
    """At most ``most`` of the numbers below ``count``, evenly spaced."""
    if count <= most:
        return list(range(count))
    return torch.linspace(0, count - 1, most).round().int().tolist()


def _title(dataset: ImageSet, split: str, rows: int) -> str:
    note = f" ({rows} of them shown)" if rows < dataset.num_classes else ""
    name = f"{dataset.name} {split}".rstrip()
    return f"{name}: {len(dataset):,} images, {dataset.num_classes:,} classes{note}"


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
        file = dataset.root / dataset.files[index]  # .paths joins those of all images
        with quietly():
            pixels = read_image(file, dataset.image_size)
    else:
        pixels = dataset.images[index]
    # If there are not three channels, only the first is drawn.
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
    """A class's name, shortened to fit, above the number of its images."""
    name = " ".join(name.split())  # on one line
    text, length = name, len(name)
    while length and draw.textlength(text, font) > _LABEL - 2 * _GAP:
        length -= 1  # cut in the middle: names of one alphabet or genus differ at their ends
        text = name[: length - length // 2] + "…" + name[len(name) - length // 2 :]
    left, middle = place
    draw.text((left, middle - 3), text, _INK, font, anchor="ls")
    draw.text((left, middle + _TEXT), f"{count:,}", _FAINT, font, anchor="ls")


def _font() -> ImageFont.FreeTypeFont:
    """The font that matplotlib ships: it covers many scripts and is the same on every machine."""
    with needs("matplotlib", "a contact sheet"):
        import matplotlib
    from PIL import ImageFont

    file = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"
    return ImageFont.truetype(str(file), _TEXT)


def _save(sheet: Image.Image, path: Path) -> None:
    with whole_file(path) as file:
        sheet.save(file, format="PNG")
