"""Intervals and differences, worked by hand."""

import math
from statistics import stdev

import pytest

from experiments.report import intervals as statistics


def test_students_interval():
    # Standard deviation 2 of three values: 4.303 · 2 / √3 = 4.9687.
    found = statistics.over_seeds([2.0, 4.0, 6.0])
    assert found.mean == 4.0
    assert found.high - 4.0 == pytest.approx(4.303 * 2 / math.sqrt(3))
    assert found.over == "seeds"


def test_many_seeds_take_the_last_quantile_of_the_table():
    assert statistics.student(1) == 12.706
    assert statistics.student(500) == statistics.student(19) == 2.093


def test_one_seed_has_no_interval():
    found = statistics.over_seeds([3.0])
    assert (found.mean, found.low, found.contains(3.0)) == (3.0, None, None)


def test_episodes():
    # Standard deviation of 0, 1, 0, 1 is √(1/3).
    found = statistics.over_episodes([0.0, 1.0, 0.0, 1.0])
    assert found.mean - found.low == pytest.approx(1.96 * math.sqrt(1 / 3) / 2)


def test_wilsons_interval_stays_above_zero():
    # At no error among n images it reaches from 0 to z² / (n + z²).
    found = statistics.over_images(0.0, 96)
    assert found.low == 0.0
    assert found.high == pytest.approx(1.96**2 / (96 + 1.96**2))


def test_pairing_sees_what_means_hide():
    ours, baseline = [10.0, 20.0, 30.0], [11.0, 21.0, 31.5]
    paired = statistics.paired_over_seeds(ours, baseline)
    assert paired.mean == pytest.approx(-3.5 / 3)
    # Deviations of −1, −1, −1.5: √(1/12).
    assert paired.high - paired.mean == pytest.approx(4.303 * math.sqrt(1 / 12) / math.sqrt(3))
    assert paired.contains(0.0) is False
    assert statistics.over_seeds(ours).contains(statistics.over_seeds(baseline).mean)


def test_seeds_and_episodes_add_up_as_squares():
    # Differences by seed 0.2, 0.4; by episode 0.25, 0.35.
    found = statistics.paired_over_episodes([[0.7, 0.9], [0.8, 1.0]], [[0.55, 0.65], [0.45, 0.55]])
    seeds = 12.706 * stdev([0.2, 0.4]) / math.sqrt(2)
    episodes = 1.96 * stdev([0.25, 0.35]) / math.sqrt(2)
    assert found.mean == pytest.approx(0.3)
    assert found.high - found.mean == pytest.approx(math.hypot(seeds, episodes))
    assert found.over == "seeds and episodes"
