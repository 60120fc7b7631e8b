"""The usual implementations that the family is compared with compute the same function."""

import pytest
import torch

from benchmarks.family import DIRECTIONS, LAYERS, WAYS, check_equal, step

SMALL = (2, 32, 9)


@pytest.mark.parametrize("name", LAYERS)
def test_both_ways_are_equal(name):
    check_equal(name, SMALL)
    ours, usual = (step(name, way, DIRECTIONS[1], SMALL)() for way in WAYS)
    for one, other in zip(ours, usual, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-2)
