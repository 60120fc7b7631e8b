"""Intervals and differences, worked out by hand."""

import math
from statistics import stdev

import pytest

from experiments import intervals


def test_students_interval():
    # Standard deviation 2 of three values: 4.303 · 2 / √3 = 4.9687.
    estimate = intervals.over_seeds([2.0, 4.0, 6.0])
    assert estimate.mean == 4.0
    assert estimate.high - 4.0 == pytest.approx(4.303 * 2 / math.sqrt(3))
    assert estimate.over == "seeds"


def test_many_seeds_take_the_last_quantile_of_the_table():
    assert intervals.student(1) == 12.706
    assert intervals.student(500) == intervals.student(19) == 2.093


def test_one_seed_has_no_interval():
    estimate = intervals.over_seeds([3.0])
    assert (estimate.mean, estimate.low, estimate.contains(3.0)) == (3.0, None, None)


def test_episodes():
    # Standard deviation of 0, 1, 0, 1 is √(1/3).
    estimate = intervals.over_episodes([0.0, 1.0, 0.0, 1.0])
    assert estimate.mean - estimate.low == pytest.approx(1.96 * math.sqrt(1 / 3) / 2)


def test_wilsons_interval_stays_above_zero():
    # At no error among n images it reaches from 0 to z² / (n + z²).
    estimate = intervals.over_images(0.0, 96)
    assert estimate.low == 0.0
    assert estimate.high == pytest.approx(1.96**2 / (96 + 1.96**2))


def test_pairing_sees_what_means_hide():
    ours, baseline = [10.0, 20.0, 30.0], [11.0, 21.0, 31.5]
    paired = intervals.paired_over_seeds(ours, baseline)
    assert paired.mean == pytest.approx(-3.5 / 3)
    # Deviations of −1, −1, −1.5: √(1/12).
    assert paired.high - paired.mean == pytest.approx(4.303 * math.sqrt(1 / 12) / math.sqrt(3))
    assert paired.contains(0.0) is False
    assert intervals.over_seeds(ours).contains(intervals.over_seeds(baseline).mean)


def test_seeds_and_episodes_add_up_as_squares():
    # Differences by seed 0.2, 0.4; by episode 0.25, 0.35.
    estimate = intervals.paired_over_episodes(
        [[0.7, 0.9], [0.8, 1.0]], [[0.55, 0.65], [0.45, 0.55]]
    )
    seeds = 12.706 * stdev([0.2, 0.4]) / math.sqrt(2)
    episodes = 1.96 * stdev([0.25, 0.35]) / math.sqrt(2)
    assert estimate.mean == pytest.approx(0.3)
    assert estimate.high - estimate.mean == pytest.approx(math.hypot(seeds, episodes))
    assert estimate.over == "seeds and episodes"
