"""Loaders: the same batches from any starting point, for any number of processes."""

import gc
import itertools
import os
import signal
import subprocess
import sys
from functools import partial
from multiprocessing import active_children

import numpy as np
import pytest
import torch
from support.fake_data import memory_set, write_photos
from torch import Tensor

import neural_similarity as ns
from neural_similarity.data import (
    Augment,
    eval_loader,
    load_dataset,
    no_augment,
    split_validation,
    train_loader,
)
from neural_similarity.data.augment import color_shift, draw_numbers, square_box
from neural_similarity.data.images import read_image
from neural_similarity.data.loader import generator_of

# What a machine with one core, or a newer Python, says of worker processes.
pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)
NORMAL = {"mean": MEAN, "std": STD}


@pytest.fixture
def photos(tmp_path, monkeypatch):
    monkeypatch.setenv("NEURAL_SIMILARITY_CACHE", str(tmp_path / "cache"))
    folder = write_photos(tmp_path / "photos", each=10)
    return load_dataset("imagefolder", "train", folder, image_size=8)


@pytest.fixture(params=["memory", "folder", "folder, resized", "folder, worker"])
def make(request, photos):
    """Makes a training loader of twelve or more images, from memory or from files."""
    memory = request.param == "memory"
    dataset = memory_set(14) if memory else photos
    resized, worker = "resized" in request.param, "worker" in request.param
    augment = Augment(2, resized_crop=resized, square_crop=worker, color_noise=0.3 * worker)

    def make(batch_size=4, seed=7, **options):
        options = {"augment": augment, **NORMAL, **options}
        return train_loader(dataset, batch_size, seed=seed, workers=int(worker), **options)

    return make


def same(ours, theirs) -> bool:
    """Equal to the last bit, batch for batch."""
    ours, theirs = list(ours), list(theirs)
    return len(ours) == len(theirs) and all(
        torch.equal(a, b)
        for x, y in zip(ours, theirs, strict=True)
        for a, b in zip(x, y, strict=True)
    )


def test_an_epoch_can_begin_anywhere(make):
    whole = list(make().epoch(3))
    assert len(whole) == len(make()) >= 3
    for start in (0, 1, len(whole) - 1, len(whole)):
        assert same(make().epoch(3, start), whole[start:])


def test_ranks_share_the_batch_of_one(make):
    whole = list(make(batch_size=6).epoch(1))
    ranks = [list(make(batch_size=6, rank=r, world_size=3).epoch(1)) for r in range(3)]
    joined = [tuple(map(torch.cat, zip(*parts, strict=True))) for parts in zip(*ranks, strict=True)]
    assert same(joined, whole)
    assert all(len(labels) == 2 for _, labels in ranks[0])


def test_seed_and_epoch_decide(make):
    loader = make()
    first = list(loader.epoch(0))
    assert same(loader.epoch(0), first)
    assert not same(loader.epoch(1), first)
    assert not same(make(seed=8).epoch(0), first)


def test_an_epoch_left_early_leaves_nothing_behind(make):
    loader = make()
    next(loader.epoch(0))
    assert same(loader.epoch(2), make().epoch(2))


def test_the_global_generator_is_left_alone(make):
    before = torch.get_rng_state()
    list(make().epoch(0))
    assert torch.equal(torch.get_rng_state(), before)


def test_square_windows_and_noise_of_files_image_by_image(photos):
    plan = {"seed": 3, "mean": (0.0,) * 3, "std": (1 / 255,) * 3}
    augment = Augment(0, square_crop=True, color_noise=0.5)
    images, labels = next(train_loader(photos, 4, augment=augment, **plan).epoch(0))
    rows = torch.randperm(len(photos), generator=generator_of(3, "order", 0))[:4]
    numbers = draw_numbers(4, generator_of(3, "augment", 0, 0))
    assert torch.equal(labels, photos.labels[rows])
    shifts = 255 * color_shift(numbers, photos.color_axes(), 0.5)
    for row, drawn, shift, image in zip(rows.tolist(), numbers, shifts, images, strict=True):
        window = partial(square_box, numbers=drawn.tolist())
        pixels = read_image(photos.paths[row], (8, 8), window)
        expected = (pixels.flip(2) if drawn[2] < 0.5 else pixels) + shift[:, None, None]
        torch.testing.assert_close(image, expected.float())


def test_batches_are_normalised_and_channels_last():
    dataset = memory_set(10)
    images, labels = next(eval_loader(dataset, 10, **NORMAL).epoch())
    mean, std = (torch.tensor(v, dtype=torch.float64).reshape(3, 1, 1) for v in (MEAN, STD))
    expected = (dataset.images.double() / 255 - mean) / std
    # Two roundings to float32 of numbers below 8, and one of each constant: 4 × 2⁻²⁴ × 8.
    torch.testing.assert_close(images.double(), expected, rtol=0, atol=2e-6)
    assert images.dtype == torch.float32
    assert labels.dtype == torch.int64
    assert images.is_contiguous(memory_format=torch.channels_last)


def test_an_image_is_varied_otherwise_in_another_epoch():
    """One batch is the whole set, so that only variation can tell epochs apart."""
    images = torch.randint(256, (1, 3, 8, 8), dtype=torch.uint8).expand(40, -1, -1, -1)
    same = memory_set(40).__class__.of("same", images, torch.arange(40) % 2, ("a", "b"))
    loader = train_loader(same, 40, augment=Augment(crop=2), seed=1, **NORMAL)
    epochs = [next(loader.epoch(number))[0] for number in range(2)]
    assert not torch.equal(*epochs)  # the order does not matter: the images are all the same


def test_training_takes_every_image_at_most_once():
    dataset = memory_set(50)
    options = {"augment": no_augment, **NORMAL, "seed": 0}
    loader = train_loader(dataset, 8, **options)
    batches = list(loader.epoch(0))
    assert len(loader) == len(batches) == 6
    whole, _ = next(eval_loader(dataset, 50, **NORMAL).epoch())
    rows = [places(image, whole) for images, _ in batches for image in images]
    assert len(set(rows)) == 48
    assert [int(label) for _, labels in batches for label in labels] == [row % 4 for row in rows]
    assert rows != sorted(rows)


def places(image: Tensor, whole: Tensor) -> int:
    (row,) = (whole == image).flatten(1).all(1).nonzero().flatten().tolist()
    return row


def test_a_set_smaller_than_a_batch_is_one_batch():
    options = {"augment": Augment(), **NORMAL, "seed": 0}
    loader = train_loader(memory_set(10), 128, **options)
    ((_, labels),) = loader.epoch(0)
    assert sorted(labels.tolist()) == sorted(n % 4 for n in range(10))
    with pytest.raises(ns.DataError, match=r"divided among 4 .* got 10 images.*only 10 images"):
        train_loader(memory_set(10), 128, **options, world_size=4)


@pytest.mark.parametrize("count", [0, 2, 10, 23])
def test_evaluation_sees_everything_once_and_in_order(count):
    dataset = memory_set(count)
    for world_size in (1, 3):
        loaders = [
            eval_loader(dataset, 6, **NORMAL, rank=rank, world_size=world_size)
            for rank in range(world_size)
        ]
        batches = [list(loader.epoch()) for loader in loaders]
        assert [len(loader) for loader in loaders] == list(map(len, batches))
        labels = [int(n) for _, labels in itertools.chain(*batches) for n in labels]
        assert labels == dataset.labels.tolist()
        assert all(0 < len(labels) <= 6 // world_size for _, labels in itertools.chain(*batches))
        assert max(map(len, batches)) - min(map(len, batches)) <= 1


@pytest.mark.parametrize("workers", [0, 1])
def test_folders_are_evaluated_in_order(photos, workers):
    loader = eval_loader(photos, 3, **NORMAL, workers=workers)
    batches = list(loader.epoch())
    assert torch.equal(torch.cat([labels for _, labels in batches]), photos.labels)
    assert same(loader.epoch(5, start=2), batches[2:])
    assert batches[0][0].shape == (3, 3, 8, 8)
    assert batches[0][0].is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_file_that_breaks_later_is_named(photos, workers):
    bad = photos.paths[4]
    bad.write_bytes(bad.read_bytes()[:40])
    with pytest.raises(
        ns.DataError, match=rf"^{bad}: expected an image .* by an intact one\.$"
    ) as said:
        list(eval_loader(photos, 3, **NORMAL, workers=workers).epoch())
    assert "\n" not in str(said.value)


def test_validation_takes_its_share_of_every_class():
    dataset = memory_set(43)
    training, validation = split_validation(dataset, 0.2, seed=5)
    assert validation.labels.bincount().tolist() == [2, 2, 2, 2]
    assert training.labels.bincount().tolist() == [9, 9, 9, 8]
    assert training.fingerprint == validation.fingerprint == dataset.fingerprint
    pixels = {
        tuple(image.flatten().tolist()) for part in (training, validation) for image in part.images
    }
    assert len(pixels) == 43
    again, _ = split_validation(dataset, 0.2, seed=5)
    other, _ = split_validation(dataset, 0.2, seed=6)
    assert torch.equal(again.images, training.images)
    assert not torch.equal(other.images, training.images)
    few, one_each = split_validation(memory_set(8), 0.01)
    assert (len(few), len(one_each)) == (4, 4)


def test_loaders_that_cannot_be():
    dataset, options = memory_set(50), {"augment": no_augment, "seed": 0}
    with pytest.raises(
        ns.DataError, match=r"divided among 3 processes, got 8 images.*Change the batch"
    ):
        train_loader(dataset, 8, **options, **NORMAL, world_size=3)
    with pytest.raises(ns.DataError, match="a rank from 0 to 1, got 2"):
        eval_loader(dataset, 8, **NORMAL, rank=2, world_size=2)
    with pytest.raises(ns.DataError, match="a batch of at least 1 image, got 0"):
        eval_loader(dataset, 0, **NORMAL)
    with pytest.raises(ns.DataError, match=r"mean with 3 value\(s\), one per .*, got 1\."):
        eval_loader(dataset, 8, mean=(0.5,), std=STD)
    for value in (0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ns.DataError, match=rf"finite std above 0, got \(0.2, {value}, 0.4\)"):
            eval_loader(dataset, 8, mean=MEAN, std=(0.2, value, 0.4))
    with pytest.raises(ns.DataError, match="at least one image, got an empty"):
        train_loader(memory_set(0), 8, **options, **NORMAL)
    for fraction in (0, 1):
        with pytest.raises(ns.DataError, match=f"between 0 and 1, got {fraction}"):
            split_validation(dataset, fraction)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # PyTorch's own
def test_workers_are_killed_if_another_cannot_be_started(photos, monkeypatch):
    """PyTorch forgets them, and a process that waits for them at its end would wait for ever."""
    before, fork, calls = set(active_children()), os.fork, itertools.count()

    def refuse_the_second():
        if next(calls):
            raise BlockingIOError("no more processes")
        return fork()

    monkeypatch.setattr(os, "fork", refuse_the_second)
    with pytest.raises(BlockingIOError) as kept:  # so that the first worker is not garbage yet
        next(eval_loader(photos, 3, **NORMAL, workers=2).epoch())
    assert set(active_children()) == before
    del kept


def test_a_closed_loader_starts_new_workers(photos):
    loader = eval_loader(photos, 3, **NORMAL, workers=1)
    loader.close()  # before there are any
    for _ in range(2):
        next(loader.epoch())
        (worker,) = loader._batches._iterator._workers
        loader.close()
        assert not worker.is_alive()


@pytest.mark.parametrize("way", ["closed", "forgotten"])
def test_a_worker_that_does_not_answer_is_killed(photos, monkeypatch, way):
    """It ignores SIGTERM; a process that waits for it at its end would wait for ever."""
    loader = eval_loader(photos, 3, **NORMAL, workers=1)
    next(loader.epoch())
    (worker,) = loader._batches._iterator._workers
    os.kill(worker.pid, signal.SIGSTOP)
    monkeypatch.setattr(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 0.01)
    if way == "closed":
        loader.close()
    else:
        del loader
        gc.collect()
    worker.join(60)
    assert worker.exitcode == -signal.SIGKILL


LEFT_OPEN = """
import sys
from neural_similarity.data import eval_loader, load_dataset

dataset = load_dataset("imagefolder", "train", sys.argv[1], image_size=8)
loader = eval_loader(dataset, 3, mean=(0.0,) * 3, std=(1.0,) * 3, workers=1)
batches = loader.epoch()
next(batches)
"""


@pytest.mark.slow
def test_workers_do_not_keep_a_process_from_ending(photos, tmp_path):
    """They ignore SIGTERM, with which Python would end them, and it would wait for ever."""
    subprocess.run(
        [sys.executable, "-c", LEFT_OPEN, photos.root], check=True, timeout=240,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


def test_one_epoch_at_a_time_with_workers(photos):
    loader = train_loader(photos, 4, seed=0, augment=no_augment, workers=1, **NORMAL)
    first = loader.epoch(0)
    next(first)
    second = loader.epoch(1)
    next(second)
    with pytest.raises(ns.DataError, match=r"loader: expected one epoch at a time, got a new one"):
        next(first)
    loader.close()
    alone = train_loader(photos, 4, seed=0, augment=no_augment, workers=0, **NORMAL)
    both = zip(alone.epoch(0), alone.epoch(1), strict=True)
    assert same((batch for batch, _ in both), alone.epoch(0))


def test_a_worker_that_is_killed_is_named(photos, monkeypatch):
    """As PyTorch reports it; a real one may be reported anywhere, also outside of the loader."""
    loader = train_loader(photos, 4, seed=0, augment=no_augment, workers=1, **NORMAL)
    expected = list(loader.epoch(0))

    def killed(said):
        yield from list(loader._batches)[:1]
        raise RuntimeError(said)

    with monkeypatch.context() as patch:
        patch.setattr(loader, "_start", lambda: killed("DataLoader worker (pid 7) is killed by"))
        with pytest.raises(ns.DataError, match="got one that was killed, probably because memory"):
            list(loader.epoch(1))
        said = "Caught RuntimeError in DataLoader worker process 0."
        patch.setattr(loader, "_start", lambda: killed(said))
        with pytest.raises(RuntimeError, match=said):
            list(loader.epoch(1))
    assert same(loader.epoch(0), expected)
    loader.close()


def test_whole_numbers_of_any_kind_are_the_same_seed():
    dataset = memory_set(30)
    expected = split_validation(dataset, 0.2, 3)[1]
    for seed in (np.int64(3), torch.tensor(3)):
        assert torch.equal(split_validation(dataset, 0.2, seed)[1].images, expected.images)
        ours, theirs = (
            train_loader(dataset, 4, seed=s, augment=Augment(2), **NORMAL).epoch(e)
            for s, e in ((seed, np.int64(2)), (3, 2))
        )
        assert same(ours, theirs)
    with pytest.raises(ns.DataError, match=r"a whole number as seed or epoch, got 0\.5"):
        split_validation(dataset, 0.2, 0.5)


def test_means_are_finite_numbers():
    dataset = memory_set(6)
    whole = {"mean": (0, 0, 0), "std": (1, 1, 1)}
    images, _ = next(eval_loader(dataset, 6, **whole).epoch(0))
    assert images.dtype == torch.float32
    with pytest.raises(ns.DataError, match=r"expected finite mean, got \(0.5, nan, 0.5\)"):
        eval_loader(dataset, 6, mean=(0.5, float("nan"), 0.5), std=STD)
