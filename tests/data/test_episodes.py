"""Episodes: disjoint, balanced, and a function of their seed."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import neural_similarity as ns
from neural_similarity.data import Episodes

PINNED = [[[[4], [19]]], [[[16, 8], [11, 7]]], [[0, 3]]]
LABELS = torch.arange(7).repeat(12)[torch.randperm(84, generator=torch.Generator().manual_seed(3))]


@st.composite
def settings_of_episodes(draw):
    n_shot = draw(st.integers(1, 8))
    return {
        "n_way": draw(st.integers(1, 7)),
        "n_shot": n_shot,
        "n_query": draw(st.integers(1, 12 - n_shot)),
        "seed": draw(st.integers(0, 2**40)),
        "count": draw(st.integers(1, 9)),
    }


def same(ours, theirs) -> bool:
    return all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@settings(deadline=None)
@given(settings_of_episodes())
def test_disjoint_balanced_and_in_range(options):
    episodes = Episodes(LABELS, **options)
    support, query, classes = episodes.batch(0, len(episodes))
    way, count = options["n_way"], options["count"]
    assert support.shape == (count, way, options["n_shot"])
    assert query.shape == (count, way, options["n_query"])
    assert classes.shape == (count, way)
    images = torch.cat((support, query), dim=2)
    assert int(images.min()) >= 0
    assert int(images.max()) < len(LABELS)
    assert torch.equal(LABELS[images], classes[:, :, None].expand_as(images))
    for episode, chosen in zip(images, classes, strict=True):
        assert episode.unique().numel() == episode.numel()
        assert chosen.unique().numel() == way


@settings(deadline=None)
@given(settings_of_episodes(), st.data())
def test_any_stretch_can_be_made_alone(options, data):
    episodes = Episodes(LABELS, **options)
    whole = episodes.batch(0, len(episodes))
    start = data.draw(st.integers(0, len(episodes)))
    stop = data.draw(st.integers(start, len(episodes)))
    again = Episodes(LABELS, **options)
    assert same(again.batch(start, stop), (part[start:stop] for part in whole))
    assert again.fingerprint() == episodes.fingerprint()


@given(st.integers(0, 2**40))
def test_seeds_differ(seed):
    def made(seed):
        return Episodes(LABELS, n_way=5, n_shot=2, n_query=3, seed=seed, count=3)

    assert not same(made(seed).batch(0, 3), made(seed + 1).batch(0, 3))
    assert made(seed).fingerprint() != made(seed + 1).fingerprint()


def test_episodes_of_one_seed_differ():
    support = Episodes(LABELS, n_way=5, n_shot=2, n_query=3, count=50).batch(0, 50).support
    assert len({tuple(s.flatten().tolist()) for s in support}) == 50


def test_every_class_and_image_has_its_turn():
    drawn = Episodes(LABELS, n_way=5, n_shot=2, n_query=3, count=2000).batch(0, 2000)
    shares = torch.bincount(drawn.classes.flatten(), minlength=7) / 10_000
    # 1/7 each; six standard deviations of a share over 2,000 draws without replacement.
    assert torch.all((shares - 1 / 7).abs() < 6 * (2 / 7 * 5 / 7 / 2000) ** 0.5 / 5)
    images = torch.bincount(drawn.support.flatten(), minlength=84) / 20_000
    assert torch.all((images - 1 / 84).abs() < 6 * (1 / 84 / 20_000) ** 0.5)


def test_numbers_promised_never_to_change():
    """Written down when the file was; a change would make old results incomparable."""
    batch = Episodes(torch.arange(4).repeat(5), n_way=2, n_shot=1, n_query=2, seed=1).batch(7, 8)
    assert [part.tolist() for part in batch] == PINNED


def test_the_order_of_classes_that_do_not_occur_is_of_no_matter():
    labels = torch.tensor([9, 4, 9, 4, 4, 9])
    batch = Episodes(labels, n_way=2, n_shot=1, n_query=2, count=5).batch(0, 5)
    assert set(batch.classes.flatten().tolist()) == {4, 9}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"n_way": 8}, r"at least 8 classes for 8-way episodes, got 7\. Use a smaller n_way"),
        (
            {"n_shot": 5, "n_query": 15},
            r"at least 20 images of each class, 5 for n_shot and 15 for n_query, got 12 of "
            r"class 0; 7 of 7 classes have too few\. Use a smaller n_shot",
        ),
        ({"seed": -1}, "expected seed to be a whole number of at least 0, got -1"),
        ({"n_way": 0}, r"expected n_way to be a whole number of at least 1, got 0"),
    ],
)
def test_what_cannot_be_drawn(options, text):
    with pytest.raises(ns.NeuralSimilarityError, match=text):
        Episodes(LABELS, **options)


def test_wrong_labels_and_stretches():
    with pytest.raises(ns.DataError, match=r"whole numbers of shape \(N,\) as labels, got"):
        Episodes(torch.rand(5))
    with pytest.raises(ns.DataError, match=r"at least 5 classes .* got 0"):
        Episodes(torch.zeros(0, dtype=torch.int64))
    with pytest.raises(ns.DataError, match="a range within 0 to 3, got 2 to 4"):
        Episodes(LABELS, n_query=2, count=3).batch(2, 4)
