"""Near-identical images are found by their features, and distinct ones are not."""

import pytest
import torch
import torch.nn.functional as F

from neural_similarity.adapt.validation.duplicates import duplicate_groups, near_duplicates


def clusters(n_way, shots, spread, dimension=64):
    torch.manual_seed(0)
    points = torch.randn(n_way, 1, dimension) + spread * torch.randn(n_way, shots, dimension)
    return points.flatten(0, 1), torch.arange(n_way).repeat_interleave(shots)


@pytest.mark.parametrize("spread", [0.05, 0.5, 2.0])
def test_distinct_images_are_alone(spread):
    """Also in classes whose images resemble each other far more than other classes."""
    points, labels = clusters(4, 12, spread)
    assert duplicate_groups(near_duplicates(points, labels)) == ()


@pytest.mark.parametrize("noise", [0.0, 1e-6, 0.1])
def test_copies_are_found_whatever_their_scale_and_label(noise):
    points, labels = clusters(4, 12, 0.5)
    points[5] = 3 * (points[2] + noise * torch.randn(64))
    points[30] = points[40] + noise * torch.randn(64)  # of another class
    points[31] = points[40]
    groups = near_duplicates(points, labels)
    assert duplicate_groups(groups) == ((2, 5), (30, 31, 40))
    assert groups[5] == 2


def test_frames_of_a_video_are_one_group():
    points, labels = clusters(3, 20, 0.5)
    steps = 0.05 * torch.randn(6, 64)
    points[4:10] = points[4] + steps.cumsum(0)
    groups = near_duplicates(points, labels)
    assert duplicate_groups(groups) == (tuple(range(4, 10)),)


def test_a_chain_does_not_become_one_group():
    """A hundred steps along a circle: each is next to the last, the ends are far apart."""
    angles = torch.linspace(0, torch.pi, 100)
    points = torch.stack([angles.cos(), angles.sin()], 1)
    groups = near_duplicates(points, torch.zeros(100, dtype=int))
    widths = [
        torch.cdist(points[groups == group], points[groups == group]).max()
        for group in groups.unique()
    ]
    typical = torch.pdist(points).median()
    assert len(widths) > 2
    assert max(widths) <= 0.8 * typical + 1e-6


def test_mirrored_copies_are_found_if_their_features_are_given():
    points, labels = clusters(2, 8, 0.5)
    mirrored = points + 0.5 * torch.randn(16, 64)
    points[3], mirrored[3] = mirrored[1], points[1]
    assert duplicate_groups(near_duplicates(points, labels)) == ()
    assert duplicate_groups(near_duplicates(points, labels, mirrored)) == ((1, 3),)


def test_few_images():
    one = torch.ones(1, 4)
    assert near_duplicates(one, torch.zeros(1, dtype=int)).tolist() == [0]
    same = torch.ones(3, 4)
    assert near_duplicates(same, torch.arange(3)).tolist() == [0, 0, 0]
    pair = F.one_hot(torch.arange(4)).float()
    assert near_duplicates(pair, torch.tensor([0, 0, 1, 1])).tolist() == [0, 1, 2, 3]
