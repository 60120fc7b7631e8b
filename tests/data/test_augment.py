"""Augmentation: held against loops over images and pixels."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.fake_data import memory_set

from neural_similarity.data import Augment, augment_batch, no_augment
from neural_similarity.data.augment import apply_numbers, crop_box, draw_numbers

SHARE = st.floats(0, 1, exclude_max=True)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def cut(image, crop, top, left, mirrored):
    """A window of the image with zeros around it, pixel by pixel."""
    channels, height, width = image.shape
    result = torch.zeros_like(image)
    for c in range(channels):
        for y in range(height):
            for x in range(width):
                row, column = y + top - crop, x + left - crop
                inside = 0 <= row < height and 0 <= column < width
                place = width - 1 - x if mirrored else x
                result[c, y, place] = image[c, row, column] if inside else 0
    return result


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_windows_and_mirrors_pixel_by_pixel(dtype):
    images = memory_set(8).images.to(dtype)
    numbers = draw_numbers(8, seeded())
    varied = apply_numbers(images, Augment(crop=2), numbers)
    assert varied.dtype == dtype
    assert varied.is_contiguous(memory_format=torch.channels_last)
    for image, row, got in zip(images, numbers.tolist(), varied, strict=True):
        top, left = int(5 * row[0]), int(5 * row[1])
        assert torch.equal(got, cut(image, 2, top, left, mirrored=row[2] < 0.5))


def test_every_place_and_both_sides_come_up():
    """2,000 draws of 18 cases: the rarest has probability 1/18, missed once in 10⁴⁹ runs."""
    image = torch.arange(1, 31, dtype=torch.uint8).reshape(1, 1, 6, 5)
    varied = augment_batch(image.expand(2000, -1, -1, -1), Augment(crop=1), seeded())
    expected = {
        tuple(cut(image[0], 1, top, left, mirrored).flatten().tolist())
        for top in range(3)
        for left in range(3)
        for mirrored in (False, True)
    }
    assert {tuple(v.flatten().tolist()) for v in varied} == expected


def test_without_augmentation_nothing_changes():
    images = memory_set(8).images
    assert torch.equal(augment_batch(images, no_augment, seeded()), images)


def test_the_generator_decides():
    images = memory_set(8).images
    one, same, other = (augment_batch(images, Augment(), seeded(n)) for n in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_a_resized_window_of_everything_is_the_image():
    images = memory_set(4, height=7, width=7).images
    numbers = torch.tensor([0.3, 0.7, 0.9, 1.0, 0.5], dtype=torch.float64).repeat(4, 1)
    whole = Augment(resized_crop=True)
    assert torch.equal(apply_numbers(images, whole, numbers), images)
    numbers[:, 2] = 0.1
    assert torch.equal(apply_numbers(images, whole, numbers), images.flip(3))


def test_a_resized_window_is_that_part_of_the_image():
    """A ramp stays a ramp: bilinear sampling of a linear image is exact, up to its rounding."""
    ramp = torch.arange(16.0).expand(1, 1, 16, 16)
    numbers = torch.tensor([[0.25, 0.5, 0.9, 0.2, 0.6]], dtype=torch.float64)
    _, left, _, wide = crop_box(16, 16, numbers[0].tolist())
    got = apply_numbers(ramp, Augment(resized_crop=True), numbers)
    expected = left + (torch.arange(16) + 0.5) * wide / 16 - 0.5
    torch.testing.assert_close(got[0, 0, 0], expected, rtol=0, atol=1e-5)
    assert wide < 15


@given(st.integers(1, 500), st.integers(1, 500), st.lists(SHARE, min_size=5, max_size=5))
def test_resized_windows_lie_within_the_image(height, width, numbers):
    top, left, high, wide = crop_box(height, width, numbers)
    slack = 1e-9 * (height + width)
    assert min(top, left) >= 0
    assert min(high, wide) > 0
    assert top + high <= height + slack
    assert left + wide <= width + slack
    assert high * wide <= height * width * (1 + 1e-9)
