"""Data sets of image files: decoding, damaged files, the cache of decoded sets."""

import logging
import os
import shutil
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image
from support.fake_data import write_image, write_photos

import neural_similarity as ns
from neural_similarity.data import (
    FolderSet,
    MemorySet,
    folders,
    images,
    load_dataset,
    split_validation,
)
from neural_similarity.data.folders import files_below
from neural_similarity.data.image_sets import IMAGENET_STATISTICS
from neural_similarity.data.images import decode_error
from neural_similarity.data.sets import mini_imagenet


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("NEURAL_SIMILARITY_CACHE", str(tmp_path / "cache"))


def test_a_folder_a_class_is_split(tmp_path):
    photos = write_photos(tmp_path / "photos", each=10)
    training, test = (load_dataset("imagefolder", s, photos) for s in ("train", "test"))
    assert isinstance(training, FolderSet)
    assert training.classes == ("cat", "dog")
    assert training.labels.bincount().tolist() == [8, 8]
    assert test.labels.bincount().tolist() == [2, 2]
    assert {*training.paths, *test.paths} == {p for p in photos.rglob("*.*") if p.is_file()}
    assert all(p.relative_to(photos).parts[0] == training.classes[n]
               for p, n in zip(training.paths, training.labels.tolist(), strict=True))  # fmt: skip
    assert (training.in_channels, training.image_size, training.num_classes) == (3, (84, 84), 2)
    assert training.statistics() == IMAGENET_STATISTICS
    assert load_dataset("imagefolder", "train", photos).files == training.files
    with pytest.raises(ns.DataError, match="which is split into 'train' and 'test' only"):
        load_dataset("imagefolder", "val", photos)


def test_folders_that_are_split_already(tmp_path):
    write_photos(tmp_path / "train", ("cat", "dog", "owl"))
    write_photos(tmp_path / "val", ("dog", "owl"), each=3)
    validation = load_dataset("imagefolder", "val", tmp_path)
    assert validation.classes == ("cat", "dog", "owl")
    assert validation.labels.tolist() == [1] * 3 + [2] * 3
    assert load_dataset("imagefolder", "test", tmp_path).files == validation.files
    write_photos(tmp_path / "test", ("dog",), each=1)
    assert len(load_dataset("imagefolder", "test", tmp_path)) == 1
    (tmp_path / "test" / "yak").mkdir()
    with pytest.raises(ns.DataError, match=r"got also yak\. A class that was not trained on"):
        load_dataset("imagefolder", "test", tmp_path)


def test_a_class_called_train(tmp_path):
    photos = tmp_path / "photos"
    for name in ("bus", "car", "train"):
        for number in range(5):
            write_image(photos / name / f"{number}.png")
    assert load_dataset("imagefolder", "train", photos).classes == ("bus", "car", "train")
    (photos / "train" / "2020").mkdir()
    assert load_dataset("imagefolder", "train", photos).classes == ("bus", "car", "train")
    write_image(photos / "train" / "2020" / "0.png")
    (photos / "val").mkdir()
    assert load_dataset("imagefolder", "train", photos).classes == ("2020",)


def test_folders_that_cannot_be_read_are_named(tmp_path, monkeypatch, caplog):
    """As when they belong to another user; the administrator can read everything."""
    photos, scandir = write_photos(tmp_path), os.scandir

    def refused(place):
        if Path(place).name == "dog":
            raise PermissionError(13, "Permission denied", str(place))
        return scandir(place)

    monkeypatch.setattr(os, "scandir", refused)
    with pytest.raises(ns.DataError, match=f"{photos / 'dog'}: .*Permission denied.*left out"):
        load_dataset("imagefolder", "train", tmp_path)
    assert len(files_below(photos)) == 5, "the others are classified, with a warning"
    assert f"skipped {photos / 'dog'}: Permission denied" in caplog.text


def test_what_folders_lack_is_said(tmp_path):
    with pytest.raises(ns.DataError, match=f"one folder per class in {tmp_path}, got none"):
        load_dataset("imagefolder", "train", tmp_path / ".")
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "notes.txt").write_text("not an image")
    with pytest.raises(ns.DataError, match=f"images in {tmp_path}/CLASS/, got none"):
        load_dataset("imagefolder", "train", tmp_path)
    write_photos(tmp_path / "train")
    with pytest.raises(ns.DataError, match=f"expected {tmp_path}/test or {tmp_path}/val beside"):
        load_dataset("imagefolder", "test", tmp_path)


@pytest.mark.parametrize("below", [".", "imagenet"])
def test_imagenet(tmp_path, below):
    for split, each in (("train", 3), ("val", 2)):
        write_photos(tmp_path / below / split, ("n01440764", "n01443537"), each)
    training, validation = (load_dataset("imagenet", s, tmp_path) for s in ("train", "val"))
    assert training.image_size == (224, 224)
    assert training.classes == validation.classes == ("n01440764", "n01443537")
    assert (len(training), len(validation)) == (6, 4)
    assert load_dataset("imagenet", "val", tmp_path, image_size=64).image_size == (64, 64)


def damage(photos):
    """A file cut short, an empty one and one that is no image."""
    short, empty, foreign = photos / "cat/0.jpg", photos / "dog/2.JPEG", photos / "dog/more/1.png"
    short.write_bytes(short.read_bytes()[: short.stat().st_size // 2])
    empty.write_bytes(b"")
    foreign.write_text("<html>")
    return {short: "truncated", empty: "empty", foreign: "no image format that we read"}


def test_damaged_files_are_named_and_skipped(tmp_path, caplog):
    photos = write_photos(tmp_path / "train")
    damaged = damage(photos)
    with caplog.at_level(logging.WARNING, "neural_similarity"):
        dataset = load_dataset("imagefolder", "train", tmp_path)
    assert len(dataset) == 7
    assert {bad.path for bad in dataset.skipped} == set(damaged)
    assert all(damaged[bad.path] in bad.reason.lower() for bad in dataset.skipped)
    assert not set(damaged) & set(dataset.paths)
    assert "skipped 3 file(s)" in caplog.text
    assert all(str(path) in caplog.text for path in damaged)


def test_damaged_files_are_fatal_if_asked(tmp_path):
    damage(write_photos(tmp_path / "train"))
    with pytest.raises(
        ns.DataError, match=r"got 3 that cannot: .*cat/0.jpg \(.*leave out --strict"
    ):
        load_dataset("imagefolder", "train", tmp_path, strict=True)


def test_a_missing_package_is_not_taken_for_damaged_files(tmp_path, monkeypatch):
    write_photos(tmp_path / "train")
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ns.DataError, match=r"^image files: expected the package pillow.*\[cli\]"):
        load_dataset("imagefolder", "train", tmp_path)


def test_files_are_checked_once_and_again_when_they_change(tmp_path, monkeypatch):
    photos, checked = write_photos(tmp_path / "train"), []
    monkeypatch.setattr(
        "neural_similarity.data.folders.decode_error",
        lambda path: checked.append(path) or decode_error(path),
    )
    first = load_dataset("imagefolder", "train", tmp_path)
    assert len(checked) == len(first) == 10
    assert load_dataset("imagefolder", "train", tmp_path).fingerprint == first.fingerprint
    assert len(checked) == 10
    damage(photos)
    second = load_dataset("imagefolder", "train", tmp_path)
    assert (len(checked), len(second)) == (20, 7)
    assert second.fingerprint != first.fingerprint
    for kept in (tmp_path / "cache").glob("*.json"):
        kept.write_text("{")
    assert len(load_dataset("imagefolder", "train", tmp_path)) == 7
    assert len(checked) == 30


def test_damaged_files_are_tried_anew(tmp_path, monkeypatch):
    """One that could not be read for a while has the same name, size and time afterwards."""
    write_photos(tmp_path / "train")
    away, checked = "cat/2", []
    with monkeypatch.context() as for_a_while:
        for_a_while.setattr(
            "neural_similarity.data.folders.decode_error",
            lambda path: "Permission denied" if away in str(path) else decode_error(path),
        )
        assert len(load_dataset("imagefolder", "train", tmp_path)) == 9
    monkeypatch.setattr(
        "neural_similarity.data.folders.decode_error",
        lambda path: checked.append(path) or decode_error(path),
    )
    assert len(load_dataset("imagefolder", "train", tmp_path)) == 10
    assert len(checked) == 1


def test_links_that_lead_nowhere_or_back(tmp_path):
    photos = write_photos(tmp_path / "train")
    (photos / "cat" / "gone.png").symlink_to(tmp_path / "nothing.png")
    (photos / "cat" / "up").symlink_to(photos, target_is_directory=True)
    (photos / "dog" / "again").symlink_to(photos / "dog", target_is_directory=True)
    dataset = load_dataset("imagefolder", "train", tmp_path)
    assert dataset.labels.bincount().tolist() == [5, 5]
    (bad,) = dataset.skipped
    assert (bad.path.name, bad.reason) == ("gone.png", "No such file or directory")


def test_files_that_are_no_images_are_named(tmp_path, caplog):
    photos = write_photos(tmp_path / "train")
    (photos / "dog" / "rex").write_text("what is this?")
    (photos / "dog" / "new.HEIC").write_text("Pillow does not know it")
    with caplog.at_level(logging.WARNING, "neural_similarity"):
        dataset = load_dataset("imagefolder", "train", tmp_path)
    assert [bad.path.name for bad in dataset.skipped] == ["new.HEIC"]
    assert "skipped 1 file(s) in formats that are not read: dog/rex" in caplog.text


def mini(root, count=4):
    for split, classes in (("train", ("n1", "n2")), ("val", ("n3",)), ("test", ("n4",))):
        lines = ["filename,label"]
        for name in classes:
            for number in range(count):
                file = f"{name}-{number}.jpg"
                write_image(root / "images" / file, (40, 30), (60 * number, 90, 20))
                lines.append(f"{file},{name}")
        (root / f"{split}.csv").write_text("\n".join(lines) + "\n")


def test_mini_imagenet_is_kept_decoded(tmp_path, monkeypatch):
    mini(tmp_path / "mini-imagenet")
    dataset = load_dataset("mini-imagenet", "train", tmp_path)
    assert isinstance(dataset, MemorySet)
    assert dataset.image_size == (84, 84)
    assert dataset.classes == ("n1", "n2")
    assert dataset.labels.tolist() == [0] * 4 + [1] * 4
    # JPEG keeps a plain colour to a few levels.
    assert (dataset.images[2, :, 0, 0].int() - torch.tensor([120, 90, 20])).abs().max() <= 4
    assert load_dataset("mini-imagenet", "val", tmp_path, image_size=20).image_size == (20, 20)
    monkeypatch.setattr(mini_imagenet, "read_images", lambda *_: pytest.fail("decoded again"))
    again = load_dataset("mini-imagenet", "train", tmp_path)
    assert torch.equal(again.images, dataset.images)
    assert (again.fingerprint, again.classes) == (dataset.fingerprint, dataset.classes)


def test_an_image_of_the_same_size_is_decoded_again(tmp_path):
    mini(tmp_path)
    file = tmp_path / "images" / "n4-1.jpg"
    one, other = (file.with_name(f"n4-{n}.jpg").read_bytes() for n in (1, 2))
    size, seen = max(len(one), len(other)), []
    for content in (one, other):
        file.write_bytes(content.ljust(size, b"\0"))  # decoders ignore what follows the image
        seen.append(load_dataset("mini-imagenet", "test", tmp_path).images[1])
    assert not torch.equal(*seen)


@pytest.mark.parametrize("harm", [lambda b: b[:-50], lambda b: b[:-50] + bytes(50), lambda b: b""])
def test_a_damaged_cache_is_made_again(tmp_path, harm, caplog):
    mini(tmp_path)
    dataset = load_dataset("mini-imagenet", "test", tmp_path)
    (kept,) = (tmp_path / "cache").glob("*.safetensors")
    kept.write_bytes(harm(kept.read_bytes()))
    again = load_dataset("mini-imagenet", "test", tmp_path)
    assert again.fingerprint == dataset.fingerprint
    assert "is damaged and will be rebuilt" in caplog.text
    caplog.clear()
    assert load_dataset("mini-imagenet", "test", tmp_path).fingerprint == dataset.fingerprint
    assert not caplog.text


def test_a_cache_that_cannot_be_written_costs_only_time(tmp_path, monkeypatch, caplog):
    mini(tmp_path)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("NEURAL_SIMILARITY_CACHE", str(tmp_path / "file" / "cache"))
    assert len(load_dataset("mini-imagenet", "test", tmp_path)) == 4
    assert "could not be saved" in caplog.text


def test_damaged_mini_imagenet(tmp_path):
    mini(tmp_path)
    (tmp_path / "images" / "n3-1.jpg").unlink()
    with pytest.raises(
        ns.DataError, match=rf"expected {tmp_path}/images/n3-1.jpg, which .*val.csv"
    ):
        load_dataset("mini-imagenet", "val", tmp_path)
    (tmp_path / "images" / "n4-1.jpg").write_bytes(b"GIF89a")
    with pytest.raises(ns.DataError, match=rf"^{tmp_path}/images/n4-1.jpg: expected an image"):
        load_dataset("mini-imagenet", "test", tmp_path)
    for content, said in (
        ("file,class\n", "the header filename,label, got file,class"),
        ("filename,label\n../secret.jpg,n1\n", "lines FILENAME,LABEL, got '../secret.jpg,n1'"),
        ("filename,label\n", "at least one image, got none"),
    ):
        (tmp_path / "train.csv").write_text(content)
        with pytest.raises(ns.DataError, match=f"train.csv: expected {said}"):
            load_dataset("mini-imagenet", "train", tmp_path)


def test_omniglot_has_bright_strokes(tmp_path):
    for part, alphabet in (("images_background", "Greek"), ("images_evaluation", "Runes")):
        for character in ("character01", "character02"):
            drawing = Image.new("1", (105, 105), 1)
            drawing.paste(0, (40, 0, 65, 105))
            folder = tmp_path / "omniglot-py" / part / alphabet / character
            folder.mkdir(parents=True)
            for number in range(3):
                drawing.save(folder / f"0001_{number}.png")
    training, test = (load_dataset("omniglot", s, tmp_path) for s in ("train", "test"))
    assert training.classes == ("Greek/character01", "Greek/character02")
    assert test.classes == ("Runes/character01", "Runes/character02")
    assert training.images.shape == (6, 1, 28, 28)
    assert training.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert training.images[0, 0, 5].tolist()[:9] == [0] * 9
    assert training.images[0, 0, 5, 13] == 255


def test_reading_stops_at_the_first_damaged_file(tmp_path, monkeypatch):
    paths = [tmp_path / f"{n}.png" for n in range(3)]
    for path in paths:
        write_image(path)
    assert images.read_images(paths, 5, "reading").shape == (3, 3, 5, 5)
    paths[1].write_bytes(b"")
    with pytest.raises(ns.DataError, match=f"^{paths[1]}: "):
        images.read_images(paths, 5, "reading")


def test_copies_are_on_one_side_of_the_division(tmp_path):
    photos = write_photos(tmp_path / "photos", each=10)
    alone = load_dataset("imagefolder", "train", photos)
    for path in sorted(photos.rglob("*.*")):
        shutil.copy(path, path.with_name(f"{path.stem} (1){path.suffix}"))
    training, test = (load_dataset("imagefolder", s, photos) for s in ("train", "test"))
    assert training.labels.bincount().tolist() == [16, 16]
    assert test.labels.bincount().tolist() == [4, 4]
    assert set(alone.files) <= set(training.files), "as if each picture came once"
    rest, held_out = split_validation(training, 0.25, 1)
    for ours, others in ((training, test), (rest, held_out)):
        known = {path.read_bytes() for path in ours.paths}
        assert not any(path.read_bytes() in known for path in others.paths)
    assert len(held_out) == 8
    original = training.fingerprint
    changed = next(path for path in test.paths if " (1)" in path.name)
    content = bytearray(changed.read_bytes())
    content[-1] ^= 1  # of the same size, and no copy any more
    changed.write_bytes(content)
    assert load_dataset("imagefolder", "train", photos).fingerprint != original


def test_training_and_validation_images_of_imagenet_are_in_one_folder(tmp_path):
    write_photos(tmp_path / "imagenet" / "train", ("a", "b"))
    write_photos(tmp_path / "val", ("b",))
    with pytest.raises(
        ns.DataError, match=r"expected 'val' and 'train' in one folder, got .* Move one"
    ):
        load_dataset("imagenet", "val", tmp_path)
    write_photos(tmp_path / "imagenet" / "val", ("b",))
    assert load_dataset("imagenet", "val", tmp_path).labels.unique().tolist() == [1]


def test_a_user_without_a_home_only_loses_time(tmp_path, monkeypatch, caplog):
    photos = write_photos(tmp_path / "photos")

    def nowhere():
        raise OSError("no home")

    monkeypatch.setattr("neural_similarity.data._cache.cache_directory", nowhere)
    with caplog.at_level(logging.WARNING, "neural_similarity"):
        assert len(load_dataset("imagefolder", "train", photos))
    assert "is not cached: no home" in caplog.text


def test_what_was_intact_is_read_again_if_asked(tmp_path):
    photos = write_photos(tmp_path / "train")
    load_dataset("imagefolder", "train", tmp_path, strict=True)
    file = next(photos.rglob("*.png"))
    stat = file.stat()
    file.write_bytes(b"x" * stat.st_size)
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert not load_dataset("imagefolder", "train", tmp_path).skipped
    assert [
        one.path for one in load_dataset("imagefolder", "train", tmp_path, fresh=True).skipped
    ] == [file]


def test_a_new_decoder_checks_all_files_again(tmp_path, monkeypatch):
    write_photos(tmp_path / "train")
    load_dataset("imagefolder", "train", tmp_path)
    asked = []
    monkeypatch.setattr(folders, "decode_error", lambda path: asked.append(path))
    load_dataset("imagefolder", "train", tmp_path)
    assert not asked
    monkeypatch.setattr(folders, "decoders", lambda: ("another", "PNG"))
    load_dataset("imagefolder", "train", tmp_path)
    assert asked
