"""Images of every mode are decoded as they look: more than 8 bits of grey, transparency."""

import struct

import numpy as np
import pytest
from PIL import Image

import neural_similarity as ns
from neural_similarity.adapt.preprocessing import as_picture
from neural_similarity.data.images import decode_error, decode_image, upright


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


@pytest.mark.parametrize(
    ("mode", "values", "hidden"),
    [("1", np.array([[True, False]]), 0), ("I;16", np.uint16([[0xFFFF, 300]]), 300)],
)
def test_one_transparent_value_becomes_white(tmp_path, mode, values, hidden):
    image = Image.fromarray(values)
    assert image.mode == mode
    image.save(tmp_path / "clear.png", transparency=hidden)
    assert np.asarray(decode_image(tmp_path / "clear.png")).min() == 255


@pytest.mark.parametrize(
    "tag",
    [
        (0x010F, 5, struct.pack("<II", 1, 1)),  # the maker as a fraction
        (0x010F, 11, struct.pack("<f", 1.0)),  # as a floating-point number
        (0x011A, 2, b"72\0\0"),  # a resolution as text
        (0x011A, 10, struct.pack("<ii", -72, 1)),  # below zero
    ],
    ids=["fraction", "float", "text", "negative"],
)
def test_a_wrong_exif_tag_does_not_cost_the_photograph(tmp_path, tag):
    """Turned by 90 degrees, as its other tag says."""
    number, kind, payload = tag
    inline = len(payload) <= 4
    entries = sorted(
        [
            struct.pack("<HHIHH", 0x0112, 3, 1, 6, 0),
            struct.pack("<HHI", number, kind, 3 if kind == 2 else 1)
            + (payload if inline else struct.pack("<I", 38)),
        ],
        key=lambda entry: struct.unpack("<H", entry[:2]),
    )
    exif = b"Exif\0\0II*\0" + struct.pack("<IH", 8, 2) + b"".join(entries) + bytes(4)
    path = tmp_path / "turned.jpg"
    Image.new("RGB", (24, 16)).save(path, exif=exif + (b"" if inline else payload))
    assert decode_error(path) is None
    assert decode_image(path).size == (16, 24)


@pytest.mark.parametrize("kind", [np.uint16, np.int32])
def test_a_dark_png_of_16_bits_stays_dark(kind):
    """Versions of Pillow differ in the mode they give it, I;16 or I."""
    image = Image.fromarray(np.full((2, 2), 200, kind))
    image.format = "PNG"
    assert np.asarray(upright(image)).max() == 0


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (np.int32([[0, 65536]]), "values from 0 to 65536, which fit neither 8 nor 16 bits"),
        (np.int32([[-1, 255]]), "values from -1 to 255, which fit neither 8 nor 16 bits"),
        (np.float32([[0, 900]]), "values from 0 to 900, which fit neither 0 to 1 nor 0 to 255"),
        (np.float32([[-0.5, 1]]), "values from -0.5 to 1, which fit neither 0 to 1 nor 0 to 255"),
        (
            np.float32([[0, np.nan]]),
            "values from nan to nan, which fit neither 0 to 1 nor 0 to 255",
        ),
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


def _stored(pixels, mode, hidden):
    """The pixels with transparent ones among them, whose invisible colour is ``hidden``."""
    gone = np.indices(pixels.shape[:2])[0] % 2 == 0
    coloured = np.where(gone[..., None], np.uint8(hidden), pixels)
    if mode == "RGBA":
        return Image.fromarray(np.dstack([coloured, np.uint8(255 * ~gone)])), {}, gone
    if mode == "LA":
        return Image.fromarray(np.dstack([coloured[..., 0], np.uint8(255 * ~gone)])), {}, gone
    places = np.where(gone, 0, 1 + np.arange(pixels.shape[1]) % 5).astype(np.uint8)
    image = Image.fromarray(places)
    image.putpalette([*hidden, *(10 * n for n in range(1, 16))])
    return image, {"transparency": 0}, gone


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_colours_that_nobody_sees_do_not_count(tmp_path, mode):
    pixels = np.random.default_rng(0).integers(0, 256, (6, 5, 3), np.uint8)
    pixels[..., 1:] = pixels[..., :1]
    seen = []
    for number, hidden in enumerate([(255, 0, 0), (0, 0, 90)]):
        image, options, gone = _stored(pixels, mode, hidden)
        image.save(tmp_path / f"{number}.png", **options)
        seen.append(np.asarray(decode_image(tmp_path / f"{number}.png")))
        opaque = np.asarray(image.convert("RGB"))
        assert (seen[-1][gone] == 255).all()
        assert (seen[-1][~gone] == opaque[~gone]).all()
    assert (seen[0] == seen[1]).all()


@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_a_single_colour_may_be_transparent(tmp_path, mode):
    grey = np.uint8([[3, 100, 200]])
    image = Image.fromarray(grey if mode == "L" else np.dstack([grey] * 3))
    image.save(tmp_path / "a.png", transparency=100 if mode == "L" else (100, 100, 100))
    assert np.asarray(decode_image(tmp_path / "a.png"))[0, :, 0].tolist() == [3, 255, 200]


@pytest.mark.parametrize("mode", ["LA", "P", "RGB", "RGBA"])
def test_opaque_images_stay_as_they_are(mode):
    """Every value of a pixel, bit for bit."""
    values = np.arange(256, dtype=np.uint8).reshape(16, 16)
    image = Image.fromarray(np.dstack([values, values[::-1], values.T])).convert(mode)
    assert (np.asarray(upright(image)) == np.asarray(image.convert("RGB"))).all()


def test_half_transparent_is_half_white():
    image = Image.new("RGBA", (1, 1), (0, 100, 200, 128))
    expected = [255 + (colour - 255) * 128 / 255 for colour in (0, 100, 200)]
    assert np.asarray(upright(image))[0, 0].tolist() == pytest.approx(expected, abs=1)  # rounded


@pytest.mark.parametrize(
    ("bits", "kind", "values", "expected"),
    [
        (12, 1, [0, 0x0FF, 0xFFF], [0, 15, 255]),
        (16, 0, [0, 0x00FF, 0xFFFF], [255, 255, 0]),
        (16, 1, [0, 0xABCD, 0xFFFF], [0, 0xAB, 255]),
    ],
)
def test_grey_tiffs_of_12_bits_and_with_white_as_zero(tmp_path, bits, kind, values, expected):
    """Written by hand: Pillow writes neither."""
    if bits == 12:  # two values in three bytes, and a row ends with a whole byte
        first, second, third = values
        data = bytes([first >> 4, (first & 15) << 4 | second >> 8, second & 255, third >> 4,
                      (third & 15) << 4])  # fmt: skip
    else:
        data = struct.pack("<3H", *values)
    tags = [
        (256, 4, 3), (257, 4, 1), (258, 3, bits), (259, 3, 1), (262, 3, kind), (273, 4, 122),
        (277, 3, 1), (278, 4, 1), (279, 4, len(data)),
    ]  # fmt: skip
    entries = b"".join(
        struct.pack("<HHIHH" if t == 3 else "<HHII", tag, t, 1, *((v, 0) if t == 3 else (v,)))
        for tag, t, v in tags
    )
    content = b"II*\0" + struct.pack("<IH", 8, len(tags)) + entries + struct.pack("<I", 0)
    (tmp_path / "grey.tif").write_bytes(content + data)
    assert len(content) == 122
    pixels = np.asarray(decode_image(tmp_path / "grey.tif"))
    assert pixels[0, :, 0].tolist() == expected


@pytest.mark.parametrize("orientation", [3, 6])
def test_an_upright_image_is_not_turned_again(orientation):
    image = Image.new("RGB", (6, 4))
    image.putpixel((0, 0), (255, 0, 0))
    image.getexif()[0x0112] = orientation
    once = upright(image)
    assert once.size == ((4, 6) if orientation == 6 else (6, 4))
    twice = upright(once)
    assert np.array_equal(np.asarray(once), np.asarray(twice))
    again = as_picture(once)
    assert np.array_equal(np.asarray(again), np.asarray(once))
