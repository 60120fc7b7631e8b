"""Reading one image: formats, modes, orientation, size."""

import sys

import numpy as np
import pytest
import torch
from PIL import Image
from support.fake_data import write_image

import neural_similarity as ns
from neural_similarity.data import images
from neural_similarity.data.formats import readable_formats
from neural_similarity.data.images import decode_error, middle, read_image, whole


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("NEURAL_SIMILARITY_CACHE", str(tmp_path / "cache"))


def test_photographs_of_phones(tmp_path, monkeypatch):
    """HEIC with a plug-in: turned upright, damage noticed although the thumbnail is intact."""
    columns = np.broadcast_to(np.arange(256, dtype=np.uint8)[None, :, None], (128, 256, 3))
    Image.fromarray(columns.copy()).save(tmp_path / "ramp.png")
    readable_formats()
    exif = Image.Exif()
    exif[0x0112] = 6
    photo = tmp_path / "photo.HEIC"
    stored = Image.fromarray(columns.copy()).transpose(Image.Transpose.ROTATE_90)
    stored.save(photo, "HEIF", quality=100, exif=exif.tobytes(), thumbnails=[64])
    assert decode_error(photo) is None
    read, expected = (read_image(tmp_path / f, (16, 32)).float() for f in (photo.name, "ramp.png"))
    assert (read - expected).abs().max() <= 6  # the codec is lossy
    content = photo.read_bytes()
    photo.write_bytes(content[: len(content) * 9 // 10])
    assert decode_error(photo)

    photo.write_bytes(content)
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    monkeypatch.setattr(images, "readable_formats", lambda: ["PNG"])
    assert decode_error(photo) == "a format that needs the package pillow-heif"
    with pytest.raises(ns.DataError, match="Install the package pillow-heif, or convert the file"):
        read_image(photo, (16, 32))


def test_formats_that_nobody_asked_for_are_not_opened(tmp_path):
    """Pillow looks at the content, not at the name; for some formats it starts programs."""
    for form in ("PCX", "EPS"):
        Image.new("RGB", (8, 6)).save(tmp_path / "photo.png", form)
        assert decode_error(tmp_path / "photo.png") == "no image format that we read"


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16"])
def test_every_mode_becomes_colour(tmp_path, mode):
    path = tmp_path / ("image.tif" if mode == "CMYK" else "image.png")
    if mode == "I;16":
        Image.fromarray(np.full((16, 20), 0xABCD, np.uint16)).save(path)
    else:
        write_image(path, colour=(255, 255, 255), mode=mode)
    image = read_image(path, (4, 4))
    assert image.shape == (3, 4, 4)
    assert image.dtype == torch.uint8
    assert image.unique().tolist() == [0xAB if mode == "I;16" else 255]


@pytest.mark.parametrize("orientation", range(1, 9))
def test_images_are_turned_upright(tmp_path, orientation):
    """Left half red, right half blue as the camera saw it, stored in each of the eight ways."""
    seen = Image.new("RGB", (32, 24), (255, 0, 0))
    seen.paste((0, 0, 255), (16, 0, 32, 24))
    stored = {
        1: (), 2: (Image.Transpose.FLIP_LEFT_RIGHT,), 3: (Image.Transpose.ROTATE_180,),
        4: (Image.Transpose.FLIP_TOP_BOTTOM,), 5: (Image.Transpose.TRANSPOSE,),
        6: (Image.Transpose.ROTATE_90,), 7: (Image.Transpose.TRANSVERSE,),
        8: (Image.Transpose.ROTATE_270,),
    }[orientation]  # fmt: skip
    for step in stored:
        seen = seen.transpose(step)
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = tmp_path / "photo.png"
    seen.save(path, exif=exif)
    image = read_image(path, (6, 8), whole)
    assert image[0, :, :3].min() == 255
    assert image[2, :, 5:].min() == 255
    assert image[0, :, 5:].max() == image[2, :, :3].max() == 0


@pytest.mark.parametrize("suffix", ["tif", "jpg", "webp"])
def test_formats_that_turn_their_size_early(tmp_path, suffix):
    """Pillow turns a TIFF's size when it opens it, and its pixels when it reads it."""
    rows = np.broadcast_to(np.arange(0, 240, 2, dtype=np.uint8)[:, None, None], (120, 40, 3))
    exif = Image.Exif()
    exif[0x0112] = 6
    stored = Image.fromarray(rows.copy()).transpose(Image.Transpose.ROTATE_90)
    stored.save(tmp_path / f"photo.{suffix}", exif=exif, quality=100)
    image = read_image(tmp_path / f"photo.{suffix}", (60, 20), whole).float()
    expected = torch.arange(1, 240, 4)[:, None].expand(60, 20)
    assert (image - expected).abs().max() <= 5  # two of three formats are lossy


def test_evaluation_sees_the_middle(tmp_path):
    """Columns numbered by their brightness: 7/8 of 64 rows, as many columns from the middle."""
    columns = np.broadcast_to(np.arange(128, dtype=np.uint8)[None, :, None], (64, 128, 3))
    Image.fromarray(columns.copy()).save(tmp_path / "ramp.png")
    image = read_image(tmp_path / "ramp.png", (56, 56))
    assert image[0, 0].tolist() == list(range(36, 92))
    assert middle(64, 128) == (4, 36, 56, 56)


def test_a_large_jpeg_is_decoded_small_and_looks_the_same(tmp_path, monkeypatch):
    x, y = np.meshgrid(np.linspace(0, 6, 800), np.linspace(0, 5, 640))
    wave = (127 + 100 * np.sin(x) * np.cos(y)).astype(np.uint8)
    Image.fromarray(wave).convert("RGB").save(tmp_path / "large.jpg", quality=95)
    fast = read_image(tmp_path / "large.jpg", (32, 32)).float()
    with Image.open(tmp_path / "large.jpg") as opened:
        monkeypatch.setattr(type(opened), "draft", lambda *_: None)
    slow = read_image(tmp_path / "large.jpg", (32, 32)).float()
    # Both are means over some 300 pixels of the same smooth wave, differently weighted.
    assert (fast - slow).abs().max() <= 3
    assert slow.std() > 20
