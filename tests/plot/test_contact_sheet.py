"""Contact sheets: the right images in the right rows, of sets in memory and in files."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from support.data_files import image_folder

from neural_similarity.data import MemorySet, load_dataset
from neural_similarity.errors import DataError
from neural_similarity.plot.contact_sheet import draw_contact_sheet


def coloured(classes, per_class=9, size=(16, 16), channels=3):
    """A set in which the images of class n have the value 10 n + 5 everywhere."""
    labels = torch.arange(classes * per_class) % classes
    pixels = (10 * labels + 5).to(torch.uint8).view(-1, 1, 1, 1)
    images = pixels.expand(-1, channels, *size).contiguous()
    return MemorySet.of("greys", images, labels, tuple(f"class number {n}" for n in range(classes)))


def read(path):
    with Image.open(path) as sheet:
        return np.asarray(sheet.convert("RGB")).astype(int)


def area(sheet, value):
    return int((sheet == value).all(-1).sum())


@pytest.mark.parametrize("channels", [1, 2, 3])
def test_every_class_has_its_row(tmp_path, channels):
    draw_contact_sheet(coloured(10, channels=channels), tmp_path / "sheet.png", per_class=6)
    sheet = read(tmp_path / "sheet.png")
    rows = []
    for number in range(10):
        value = 10 * number + 5
        # Six images of 16 × 16 enlarged three times; the edges of letters may hit a grey as well.
        assert 6 * 48 * 48 <= area(sheet, value) < 6 * 48 * 48 + 200
        rows.append(np.median((sheet == value).all(-1).nonzero()[0]))
    assert rows == sorted(rows)
    assert min(np.diff(rows)) > 48


def test_many_classes_are_thinned_out_evenly(tmp_path):
    draw_contact_sheet(coloured(25), tmp_path / "sheet.png", max_classes=13, per_class=2)
    sheet = read(tmp_path / "sheet.png")
    drawn = [n for n in range(25) if area(sheet, 10 * n + 5) >= 2 * 48 * 48]
    assert drawn == list(range(0, 25, 2))
    assert sheet.shape[0] < 10 * 60  # thirteen rows stand in two columns


def test_a_class_with_few_images_or_none(tmp_path):
    whole = coloured(3)
    few = whole.subset([0, 3, 2])  # two of the first class, none of the second, one of the third
    draw_contact_sheet(few, tmp_path / "sheet.png", split="test")
    sheet = read(tmp_path / "sheet.png")
    assert [area(sheet, 10 * n + 5) // 48**2 for n in range(3)] == [2, 0, 1]


def test_large_images_are_reduced(tmp_path):
    draw_contact_sheet(coloured(2, size=(100, 200)), tmp_path / "sheet.png", per_class=1)
    assert area(read(tmp_path / "sheet.png"), 15) // (96 * 48) == 1


def test_images_in_files(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    root = image_folder(tmp_path / "pets")
    dataset = load_dataset("imagefolder", "train", root, image_size=16)
    draw_contact_sheet(dataset, tmp_path / "sheet.png")
    red, _, blue = read(tmp_path / "sheet.png").reshape(-1, 3).T
    assert ((red == 255) & (blue == 99)).sum() == ((red == 0) & (blue == 99)).sum() == 8 * 48 * 48


def test_names_of_several_lines(tmp_path):
    dataset = replace(coloured(1), classes=("a\nb",))
    draw_contact_sheet(dataset, tmp_path / "sheet.png")
    assert (tmp_path / "sheet.png").is_file()


def test_the_file_appears_whole_or_not_at_all(tmp_path, monkeypatch):
    target = tmp_path / "sheet.png"
    target.write_text("mine")

    def fail(image, path, format):
        path.write_text("half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Image.Image, "save", fail)
    with pytest.raises(OSError, match="No space left"):
        draw_contact_sheet(coloured(2), target)
    assert [path.name for path in tmp_path.iterdir()] == ["sheet.png"]
    assert target.read_text() == "mine"


def test_nothing_to_draw(tmp_path):
    for dataset, options in ((coloured(2).subset([]), {}), (coloured(2), {"per_class": 0})):
        with pytest.raises(DataError, match=r"expected at least one image, class and column, got"):
            draw_contact_sheet(dataset, tmp_path / "sheet.png", **options)
    assert list(tmp_path.iterdir()) == []
