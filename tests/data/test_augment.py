"""Augmentation: compared with loops over images and pixels."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.fake_data import memory_set

import neural_similarity as ns
from neural_similarity.data import Augment, MemorySet, augment_batch, no_augment, train_loader
from neural_similarity.data.augment import (
    apply_numbers,
    color_shift,
    crop_box,
    draw_numbers,
    square_box,
)

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


def test_mirror_padding_of_a_tiny_image():
    image = torch.tensor([[1, 2], [3, 4]], dtype=torch.uint8)[None, None]
    # Around it: 1 1 2 2, 1 1 2 2, 3 3 4 4, 3 3 4 4.
    corners = {(0, 0): [[1, 1], [1, 1]], (0, 2): [[2, 2], [2, 2]], (1, 0): [[1, 1], [3, 3]]}
    for (top, left), expected in corners.items():
        numbers = torch.tensor([[top / 3 + 0.1, left / 3 + 0.1, 0.9, 0.0, 0.0]])
        got = apply_numbers(image, Augment(crop=1, padding="mirror"), numbers)
        assert got[0, 0].tolist() == expected


@pytest.mark.parametrize("crop", [2, 5])
def test_mirror_padding_is_the_symmetric_padding_of_numpy(crop):
    images = memory_set(8, height=5, width=6).images
    numbers = draw_numbers(8, seeded())
    got = apply_numbers(images, Augment(crop=crop, padding="mirror"), numbers)
    sides = ((0, 0), (crop, crop), (crop, crop))
    for image, row, result in zip(images, numbers.tolist(), got, strict=True):
        padded = np.pad(image.numpy(), sides, mode="symmetric")
        top, left = (int((2 * crop + 1) * place) for place in row[:2])
        window = padded[:, top : top + 5, left : left + 6]
        expected = window[:, :, ::-1] if row[2] < 0.5 else window
        assert np.array_equal(result.numpy(), expected)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"padding": "reflect"}, "expected padding to be one of 'mirror', 'zeros'"),
        ({"resized_crop": True, "square_crop": True}, "resized_crop or square_crop, got both"),
        ({"color_noise": -1}, "color_noise to be a finite number of at least 0, got -1"),
        ({"color_noise": float("nan")}, "color_noise to be a finite number"),
        ({"crop": -1}, "expected crop to be a whole number of at least 0, got -1"),
        ({"crop": 1.5}, "expected crop to be a whole number of at least 0, got 1.5"),
        ({"flip": "no"}, "expected flip to be true or false"),
    ],
)
def test_augmentations_that_cannot_be(options, message):
    with pytest.raises(ns.NeuralSimilarityError, match=message):
        Augment(**options)


def test_random_numbers_of_old_runs_stay():
    first = torch.rand(6, 5, generator=seeded(3), dtype=torch.float64)
    assert torch.equal(draw_numbers(6, seeded(3))[:, :5], first)


def test_the_square_window_lies_in_the_middle_square():
    assert square_box(256, 400, [0.0, 0.0]) == (0, 72, 224, 224)
    assert square_box(256, 400, [1.0, 0.5, 0.3]) == (32, 88, 224, 224)
    ramp = torch.arange(16.0).expand(1, 1, 16, 16)
    numbers = torch.tensor([[0.25, 0.5, 0.9, 0.2, 0.6]], dtype=torch.float64)
    got = apply_numbers(ramp, Augment(crop=0, square_crop=True), numbers)
    expected = 1 + (torch.arange(16) + 0.5) * 14 / 16 - 0.5
    torch.testing.assert_close(got[0, 0, 0], expected, rtol=0, atol=1e-5)


def test_the_axes_of_colours_by_hand():
    """Red and green are equal, at 0 and 255; blue does not vary: one axis, (1, 1, 0) / √2."""
    red = torch.tensor([0, 255], dtype=torch.uint8).repeat(2, 4).reshape(2, 1, 2, 4)
    images = torch.cat([red, red, torch.full_like(red, 100)], dim=1)
    dataset = MemorySet.of("two", images, torch.tensor([0, 1]), ("a", "b"))
    axes = dataset.color_axes()
    # The variance of each is 1/4, that along the axis 1/2.
    torch.testing.assert_close(axes[:, 0], torch.tensor([0.5, 0.5, 0.0]).double())
    assert axes[:, 1:].abs().max() < 1e-7
    # The median of a normal variable is 0, its 97.5 % quantile is 1.96.
    numbers = torch.full((2, 8), 0.5, dtype=torch.float64)
    numbers[1, 5] = 0.975
    shift = color_shift(numbers, axes, noise=0.1)
    expected = torch.tensor([[0.0, 0.0, 0.0], [0.098, 0.098, 0.0]]).double()
    torch.testing.assert_close(shift, expected, atol=1e-5, rtol=0)


def test_colour_noise_is_added_to_normalised_images():
    dataset = memory_set(6)
    settings = {"mean": (0.1, 0.2, 0.3), "std": (0.5, 0.25, 2.0), "seed": 1}
    plain, noisy = (
        train_loader(dataset, 6, augment=Augment(0, False, color_noise=noise), **settings)
        for noise in (0.0, 0.2)
    )
    (before, labels), (after, same) = next(plain.epoch(0)), next(noisy.epoch(0))
    assert torch.equal(labels, same)
    shift = (after - before) * torch.tensor(settings["std"])[:, None, None]
    assert shift.std(dim=(2, 3)).max() < 1e-6, "the same for all pixels"
    assert shift.mean((2, 3)).std(0).min() > 1e-4, "another for every image"


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
