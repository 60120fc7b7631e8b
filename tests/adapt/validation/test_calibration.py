"""Calibration: confidence compared with accuracy."""

import pytest
import torch

from neural_similarity.adapt.validation.calibration import (
    Calibration,
    held_out_probabilities,
    measure_calibration,
    temperature,
)


def sharp_scores(images, factor):
    """Scores whose softmax is right, multiplied by a factor."""
    torch.manual_seed(1)
    scores = 2 * torch.randn(images, 3)
    return factor * scores, torch.distributions.Categorical(logits=scores).sample()


def test_the_temperature_fits_probabilities():
    """Scores whose softmax is right, made ten times too sharp: the temperature undoes it."""
    scores, labels = sharp_scores(4000, 10)
    # in steps of a quarter power of two
    assert temperature(scores, labels) == pytest.approx(10, rel=0.2)
    sure = 5 * torch.eye(3)
    assert 0 < temperature(sure, torch.arange(3)) < 10
    assert temperature(torch.zeros(0, 3), torch.zeros(0)) == 1


def test_the_error_by_hand():
    """Two bins: 0.6 on average where a half is right, 0.9 where all are."""
    confidences = torch.tensor([0.9, 0.55, 0.65, 0.9])
    probabilities = torch.stack([confidences, 1 - confidences], 1)
    found = measure_calibration(probabilities, torch.tensor([0, 0, 1, 0]), bins=2)
    assert [part.images for part in found.bins] == [2, 2]
    assert found.bins[0] == pytest.approx((0.6, 0.5, 2))
    assert found.bins[1] == pytest.approx((0.9, 1.0, 2))
    assert found.error == pytest.approx(0.1)
    assert Calibration.from_dict(found.to_dict()) == found


def test_bins_have_enough_images():
    scores, labels = sharp_scores(57, 1)
    sizes = [part.images for part in measure_calibration(scores.softmax(1), labels).bins]
    assert len(sizes) == 5
    assert min(sizes) >= 10
    few = measure_calibration(scores[:3].softmax(1), labels[:3])
    assert [part.images for part in few.bins] == [3]
    many = measure_calibration(scores.repeat(9, 1).softmax(1), labels.repeat(9))
    assert len(many.bins) == 10
    assert [p.confidence for p in many.bins] == sorted(p.confidence for p in many.bins)


def test_the_temperature_is_chosen_without_the_fold():
    """One fold has labels at random: it is scaled by the others, which are right."""
    scores, labels = sharp_scores(400, 4)
    parts = torch.arange(400) % 4
    labels[parts == 0] = torch.randint(3, (100,))
    probabilities = held_out_probabilities(scores, labels, parts)
    for number in range(4):
        here = parts == number
        divisor = temperature(scores[~here], labels[~here])
        assert torch.equal(probabilities[here], (scores[here] / divisor).softmax(1))
    of_first = temperature(scores[parts > 0], labels[parts > 0])
    assert of_first < temperature(scores[parts == 0], labels[parts == 0])


def test_the_temperature_lowers_the_error_of_held_out_images():
    scores, labels = sharp_scores(400, 5)
    parts = torch.arange(400) % 5
    before = measure_calibration(scores.softmax(1), labels).error
    after = measure_calibration(held_out_probabilities(scores, labels, parts), labels).error
    assert after < 0.07 < 0.15 < before


@pytest.mark.parametrize("factor", [1e-4, 1.0, 3e4])
def test_the_temperature_follows_the_scale_of_the_scores(factor):
    """Confidence is the same, whatever the scores are multiplied by; within a step of the grid."""
    labels = torch.arange(30) % 3
    scores = torch.eye(3)[labels]
    scores[:6] = scores[:6].roll(1, 0)
    found = temperature(factor * scores, labels)
    assert found / factor == pytest.approx(temperature(scores, labels), rel=0.2)
    confidence = (factor * scores / found).softmax(1).amax(1)
    assert confidence.mean().item() == pytest.approx(0.8, abs=0.1)
    assert temperature(torch.zeros(30, 3), labels) == 1


def test_the_order_of_equally_confident_images_does_not_matter():
    probabilities, labels = torch.full((20, 2), 0.5), torch.arange(20) // 10
    assert measure_calibration(probabilities, labels).error == 0
    assert measure_calibration(probabilities, labels % 2).error == 0
