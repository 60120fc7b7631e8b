"""How rejection is measured: on images not used for learning, of the right classes."""

from types import SimpleNamespace

import torch

from experiments.adapt.pools import draws
from experiments.adapt.rejection import KINDS, measure_draw, measure_pools, table_of


def pool(directions, spread=0.05, each=14, seed=0):
    """Points around one direction per class."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(len(directions)).repeat_interleave(each)
    noise = spread * torch.randn(len(labels), directions.shape[1], generator=generator)
    features = directions[labels] + noise
    return SimpleNamespace(
        features=features, mirrored=features + 0.5 * noise, labels=labels, n_way=len(directions)
    )


def test_classes_that_are_far_apart_are_told_apart():
    axes = torch.eye(12)
    data, others = pool(axes[:8]), pool(axes[8:], seed=1)
    for draw in draws(data, 3, 8, range(2)):
        result = measure_draw(data, others, draw)
        assert result["rejected, similar"] == result["rejected, different"] == 1
        assert result["wrongly rejected"] < 0.4


def test_images_of_the_classes_are_mostly_accepted_whatever_they_are_called():
    """The other pool has the same classes: of them as few are rejected as of the known ones."""
    same = torch.eye(12)[:3]
    data, others = pool(same, each=60), pool(same, each=200, seed=2)
    for draw in draws(data, 3, 40, range(2)):
        result = measure_draw(data, others, draw)
        assert result["rejected, different"] < 0.15
        assert result["wrongly rejected"] < 0.15


def test_a_row_for_each_pool_and_number_of_images():
    axes = torch.eye(12)
    pools = {"birds": pool(axes[:6]), "cars": pool(axes[6:], seed=1)}
    rows = measure_pools(pools, 3, (5, 8), 3)
    assert [(row["pool"], row["n_shot"]) for row in rows] == [
        ("birds", 5), ("birds", 8), ("cars", 5), ("cars", 8),
    ]  # fmt: skip
    for row in rows:
        for kind in KINDS:
            assert len(row[kind]["of_draws"]) == 3
            assert row[kind]["low"] <= row[kind]["mean"] <= row[kind]["high"]
    text = table_of(rows)
    assert "| birds | 5 | " in text
    assert "100.0 ± 0.0 |" in text
    assert text.splitlines()[0] == "| classes | images per class | " + " | ".join(KINDS) + " |"
