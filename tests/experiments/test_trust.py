"""The simulation of folders: what it measures, at a small size."""

import torch

from experiments import trust


def test_a_folder_is_measured():
    found = trust.measure(5, trust.CHOICES["six"], seed=4)
    assert 0.3 < found["true"] < 1
    assert found["highest"] >= max(found["other folds"], found["tibshirani"])
    assert abs(found["reported"]) < 0.3
    assert found["in the interval"] in (0, 1)
    assert 0.8 < found["accepted"] <= 1
    assert len(trust.summary([found, found])) == 9


def test_new_points_are_of_the_same_classes():
    folder = trust.simulate(20, seed=4)
    head = trust.Head("means", folder.points, folder.labels)
    right = head.of(head.fit(torch.arange(200)), folder.new).argmax(1) == folder.new_labels
    assert right.float().mean() > 0.5
    assert not torch.isin(folder.new[:, 0], folder.points[:, 0]).any()
