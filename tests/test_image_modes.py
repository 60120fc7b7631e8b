"""Images of every mode come to what is seen: many bits of grey, transparency."""

import numpy as np
import pytest
from PIL import Image

import neural_similarity as ns
from neural_similarity.data.images import decode_error, decode_image, upright
from neural_similarity.fewshot.preprocessing import as_picture


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (np.uint16([[0, 0x00FF, 0xABCD]]), [0, 0, 0xAB]),
        (np.int32([[0, 7, 255]]), [0, 7, 255]),
        (np.int32([[0, 256, 0xABCD]]), [0, 1, 0xAB]),
        (np.float32([[0, 0.5, 1]]), [0, 128, 255]),
        (np.float32([[0, 7.4, 255]]), [0, 7, 255]),
    ],
)
def test_grey_of_many_bits_is_scaled_by_its_range(tmp_path, values, expected):
    Image.fromarray(values).save(tmp_path / "deep.tif")
    pixels = np.asarray(decode_image(tmp_path / "deep.tif"))
    assert pixels[0].tolist() == [[grey] * 3 for grey in expected]


@pytest.mark.parametrize("kind", [np.uint16, np.int32])
def test_a_dark_png_of_16_bits_stays_dark(kind):
    """Versions of Pillow differ in the mode they give it, I;16 or I."""
    image = Image.fromarray(np.full((2, 2), 200, kind))
    image.format = "PNG"
    assert np.asarray(upright(image)).max() == 0


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (np.int32([[0, 65536]]), "values from 0 to 65536, neither of 8 bits nor of 16"),
        (np.int32([[-1, 255]]), "values from -1 to 255, neither of 8 bits nor of 16"),
        (np.float32([[0, 900]]), "values from 0 to 900, neither of 0 to 1 nor of 0 to 255"),
        (np.float32([[-0.5, 1]]), "values from -0.5 to 1, neither of 0 to 1 nor of 0 to 255"),
        (np.float32([[0, np.nan]]), "values from nan to nan, neither of 0 to 1 nor of 0 to 255"),
    ],
)
def test_grey_of_no_known_scale_is_refused(tmp_path, values, text):
    path = tmp_path / "deep.tif"
    Image.fromarray(values).save(path)
    assert decode_error(path) == text
    with pytest.raises(ns.DataError, match=f"{path}: expected an image that can be .* got {text}"):
        decode_image(path)
    with pytest.raises(ns.DataError, match=f"images: expected .* got {text}. Scale it first"):
        as_picture(Image.fromarray(values))
