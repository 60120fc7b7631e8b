"""A run is evaluated on its original data: otherwise it may have trained on the test images."""

import logging

import numpy as np
import pytest
from PIL import Image

import neural_similarity as ns
from neural_similarity.train import TrainConfig, train

SMALL = TrainConfig(
    data="imagefolder", image_size=16, options={"width": 4, "hidden": 8}, steps=1, batch_size=4,
    threads=1,
)  # fmt: skip


def add_image(folder, seed):
    folder.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (16, 16, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(folder / f"{seed}.png")


def add_images(root, count=10):
    for kind in ("cat", "dog"):
        for seed in range(count):
            add_image(root / kind, seed)


def trained(tmp_path, **settings):
    settings = {"data_dir": str(tmp_path / "data"), **settings}
    return train(TrainConfig.from_dict({**SMALL.to_dict(), **settings}), tmp_path / "run")


def is_refused(run, split=None):
    with pytest.raises(
        ns.RunError,
        match=r"expected the data the run began with, got different data for 'imagefolder' "
        r"\(fingerprint \w+, not \w+\)\. Restore the original data, or start a new run\.",
    ):
        run.test_set(split)


def test_test_images_drawn_from_other_images_are_refused(tmp_path):
    add_images(tmp_path / "data")
    run = trained(tmp_path)
    before = run.test_set()
    add_image(tmp_path / "data" / "cat", 10)
    is_refused(run)
    assert run.example().shape[1:] == (3, 16, 16)  # pictures and checks need no certain images
    (tmp_path / "data" / "cat" / "10.png").unlink()
    assert run.test_set().files == before.files


def test_test_images_beside_the_training_images(tmp_path):
    data = tmp_path / "data"
    add_images(data / "train")
    add_images(data / "test", 3)
    run = trained(tmp_path)
    add_image(data / "train" / "cat", 10)
    assert len(run.test_set()) == 6
    add_image(data / "test" / "cat", 11)
    is_refused(run)


def test_a_run_that_set_images_apart_and_drew_test_images(tmp_path):
    add_images(tmp_path / "data")
    run = trained(tmp_path, validation=0.25)
    assert len(run.test_set("validation")) == len(run.test_set("test")) == 4
    add_image(tmp_path / "data" / "cat", 10)
    for split in (None, "test", "validation"):
        is_refused(run, split)


def test_a_run_that_set_images_apart_beside_test_images(tmp_path):
    data = tmp_path / "data"
    add_images(data / "train")
    add_images(data / "test", 3)
    run = trained(tmp_path, validation=0.2)
    add_image(data / "test" / "cat", 11)
    assert len(run.test_set()) == 7  # the run never saw any of them, nor remembers which there were
    add_image(data / "train" / "cat", 10)
    is_refused(run, "validation")
    for file in (data / "train").glob("*/*"):
        file.unlink()
    assert len(run.test_set("test")) == 7


def test_files_that_can_be_read_later_divide_the_images_anew(tmp_path):
    data, damaged = tmp_path / "data", [tmp_path / "data" / "cat" / f"{n}.png" for n in (2, 3, 5)]
    add_images(data)
    whole = [file.read_bytes() for file in damaged]
    for file, content in zip(damaged, whole, strict=True):
        file.write_bytes(b"x" * len(content))
    run = trained(tmp_path)
    run.test_set()
    for file, content in zip(damaged, whole, strict=True):
        file.write_bytes(content)
    is_refused(run)
    with pytest.raises(ns.RunError, match="expected the data the run began with"):
        train(None, run.folder, resume=True)


def test_a_run_among_its_images_is_refused_before_anything_is_written(tmp_path):
    add_images(tmp_path / "data")
    config = TrainConfig.from_dict({**SMALL.to_dict(), "data_dir": str(tmp_path / "data")})
    with pytest.raises(ns.RunError, match=r"expected a folder outside .*, got one inside"):
        train(config, tmp_path / "data" / "runs" / "one")
    assert sorted(p.name for p in (tmp_path / "data").iterdir()) == ["cat", "dog"]
    add_images(tmp_path / "split" / "train", 3)
    config = TrainConfig.from_dict({**config.to_dict(), "data_dir": str(tmp_path / "split")})
    with pytest.raises(ns.RunError, match=r"expected a folder outside .*, got one inside"):
        train(config, tmp_path / "split" / "runs" / "one")
    add_images(tmp_path / "split" / "test", 3)
    run = train(config, tmp_path / "split" / "runs" / "one")
    assert len(run.test_set()) == 6


def test_folders_that_are_surely_a_mistake(tmp_path, caplog):
    add_images(tmp_path / "nest" / "photos")
    with pytest.raises(ns.DataError, match="at least two classes in 'imagefolder', got 'photos'"):
        trained(tmp_path, data_dir=str(tmp_path / "nest"))
    for part in ("Train", "Test"):
        add_images(tmp_path / "capitals" / part, 3)
    with pytest.raises(ns.DataError, match=r"names of the splits .* got Test, Train\. Rename"):
        trained(tmp_path, data_dir=str(tmp_path / "capitals"))
    add_images(tmp_path / "data")
    add_image(tmp_path / "data", 77)
    (tmp_path / "data" / "cow").mkdir()
    with caplog.at_level(logging.WARNING, "neural_similarity"):
        trained(tmp_path)
    assert "1 class(es) have no images to train on: 'cow'" in caplog.text
    assert "skipped 1 image(s) outside the class folders; the first is '77.png'" in caplog.text
