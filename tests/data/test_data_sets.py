"""Data sets by name, each read from a tiny copy of its layout."""

import gzip
import os
import pickle
import tracemalloc

import numpy as np
import pytest
import torch
from support.fake_data import (
    idx,
    memory_set,
    own_datasets,
    write_cifar,
    write_cifar_names,
    write_fashion,
    write_photos,
)

import neural_similarity as ns
from neural_similarity.data import (
    DatasetInfo,
    MemorySet,
    data_directory,
    dataset_info,
    list_datasets,
    load_dataset,
    registry,
)
from neural_similarity.data.sets import fashion_mnist
from neural_similarity.data.sets.cifar import CIFAR10, CIFAR100
from neural_similarity.data.sets.class_splits import CIFAR_FS, FC100

CIFAR100_NAMES = sorted({name for part in CIFAR_FS.values() for name in part})


@pytest.fixture(autouse=True)
def _own_places(tmp_path, monkeypatch):
    monkeypatch.setenv("NEURAL_SIMILARITY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(fashion_mnist, "DEBIAN", (tmp_path / "debian",))


def test_a_set_tells_its_sizes_and_gives_subsets():
    dataset = memory_set(20, height=6, width=5)
    assert (dataset.in_channels, dataset.image_size, dataset.num_classes) == (3, (6, 5), 4)
    part = dataset.subset([3, 1, 1])
    assert torch.equal(part.images, dataset.images[[3, 1, 1]])
    assert part.labels.tolist() == [3, 1, 1]
    assert part.classes == dataset.classes
    assert part.fingerprint == dataset.fingerprint


@pytest.mark.parametrize("kind", ["torch", "numpy", "list"])
def test_a_subset_by_a_mask(kind, tmp_path):
    dataset = memory_set(20)
    mask = dataset.labels == 3
    given = {"torch": mask, "numpy": mask.numpy(), "list": mask.tolist()}[kind]
    assert torch.equal(dataset.subset(given).images, dataset.images[mask])
    assert len(dataset.subset([])) == 0
    for wrong in (mask[1:], [0.9, 1.9], torch.ones(20)):
        with pytest.raises(ns.DataError, match=r"row numbers, or a mask of shape \(20,\), got"):
            dataset.subset(wrong)
    write_photos(tmp_path, each=3)
    photos = load_dataset("imagefolder", "train", tmp_path)
    assert photos.subset(photos.labels == 1).labels.unique().tolist() == [1]


def test_statistics_are_those_of_all_pixels():
    dataset = memory_set(20)
    pixels = dataset.images.double() / 255
    mean, std = dataset.statistics()
    torch.testing.assert_close(
        torch.tensor(mean).double(), pixels.mean((0, 2, 3)), rtol=1e-6, atol=0
    )
    expected = pixels.std((0, 2, 3), correction=0)
    torch.testing.assert_close(torch.tensor(std).double(), expected, rtol=1e-6, atol=0)


def test_the_copy_changes_with_a_pixel_a_label_or_the_shape():
    dataset = memory_set(20)
    images, labels = dataset.images, dataset.labels
    brighter, relabelled = images.clone(), labels.clone()
    brighter[3, 1, 2, 2] ^= 1
    relabelled[0] = 2
    copies = {
        MemorySet.of("fake", i, n, dataset.classes).fingerprint
        for i, n in (
            (images, labels),
            (brighter, labels),
            (images, relabelled),
            (images.reshape(20, 3, 5, 6), labels),
        )
    }
    assert len(copies) == 4
    assert MemorySet.of("fake", images.clone(), labels.clone(), ("a",) * 4).fingerprint in copies


def test_sets_that_do_not_fit():
    images, labels = memory_set(4).images, torch.arange(4)
    with pytest.raises(ns.DataError, match=r"expected uint8 images of shape .* got torch.float32"):
        MemorySet.of("x", images.float(), labels, "abcd")
    with pytest.raises(ns.DataError, match=r"labels of shape \(4,\), one per image, got .*\(3,\)"):
        MemorySet.of("x", images, labels[:3], "abcd")
    with pytest.raises(ns.DataError, match="labels from 0 to 2, got 0 to 3"):
        MemorySet.of("x", images, labels, "abc")


def test_names_splits_and_places(monkeypatch, tmp_path):
    cifar = [name for name in list_datasets() if name.startswith("cifar")]
    assert list_datasets("cifar*") == cifar
    assert {"cifar10", "cifar100"} <= set(cifar)
    for name in own_datasets():
        info = dataset_info(name)
        assert info.name == name
        assert info.description
        assert info.layout
        assert info.home
    with pytest.raises(ns.UnknownNameError, match="Did you mean 'cifar10'"):
        load_dataset("cifar-10")
    with pytest.raises(ns.UnknownNameError, match=r"dataset_info: .*'digits'"):
        dataset_info("digit")
    with pytest.raises(ns.UnknownNameError, match=r"split to be one of 'test', 'train', got 'val'"):
        load_dataset("digits", "val")
    for size, words in ((0, "of at least 1, got 0"), ("16", "a whole number"), (1.5, "a whole")):
        with pytest.raises(ns.NeuralSimilarityError, match=f"image_size .*{words}"):
            load_dataset("digits", image_size=size)
    monkeypatch.setenv("NEURAL_SIMILARITY_DATA", str(tmp_path))
    assert data_directory() == tmp_path
    assert data_directory("here") != tmp_path


def test_a_set_of_ones_own(monkeypatch):
    monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))
    info = DatasetInfo("mine", "classification", ("train",), "Mine.")
    registry.register_dataset(info, lambda request: memory_set(6))
    assert load_dataset("mine").image_size == (6, 5)
    assert load_dataset("mine", image_size=9).image_size == (9, 9)


def test_digits():
    training, test = load_dataset("digits"), load_dataset("digits", "test")
    assert len(training) + len(test) == 1797
    assert abs(len(test) / 1797 - 0.3) < 0.005
    assert int(training.images.max()) == 255
    assert training.fingerprint == test.fingerprint
    larger = load_dataset("digits", image_size=16)
    assert larger.image_size == (16, 16)
    assert larger.fingerprint != training.fingerprint


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("place", ["fashion-mnist", "FashionMNIST/raw", ".", "debian"])
def test_fashion_mnist(tmp_path, place, packed):
    root = tmp_path if place == "debian" else tmp_path / "data"
    written = write_fashion(root / place, packed)
    for split, part in (("train", "train"), ("test", "t10k")):
        dataset = load_dataset("fashion-mnist", split, tmp_path / "data")
        images, labels = written[part]
        assert np.array_equal(dataset.images[:, 0].numpy(), images)
        assert np.array_equal(dataset.labels.numpy(), labels)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "got a file that begins with nothing"),
        (b"<html>not found</html>", "begins with 3c 68 74 6d"),
        (idx(np.zeros((7, 28, 27), np.uint8))[:-1], r"5291 bytes for the shape \(7, 28, 27\)"),
        (idx(np.zeros(7, np.uint8)), "begins with 00 00 08 01"),
        (idx(np.zeros((7, 2, 2), np.uint8)) + b"0", r"too many bytes for the shape \(7, 2, 2\)"),
        (bytes((0, 0, 8, 3)) + b"\xff" * 12, r"one of shape \(4294967295, "),
    ],
)
def test_damaged_idx_files(tmp_path, content, said):
    write_fashion(tmp_path)
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(content)
    with pytest.raises(
        ns.DataError, match=f"^{path}: expected an idx file.*{said}.*get fashion-mnist"
    ):
        load_dataset("fashion-mnist", "train", tmp_path)


def test_a_small_archive_does_not_fill_the_memory(tmp_path):
    write_fashion(tmp_path, packed=True)
    content = idx(np.zeros((7, 28, 28), np.uint8)) + bytes(2**26)
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(content, 1))
    tracemalloc.start()
    try:
        with pytest.raises(ns.DataError, match="too many bytes for the shape"):
            load_dataset("fashion-mnist", "train", tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 2**24
    finally:
        tracemalloc.stop()


def test_a_damaged_archive(tmp_path):
    write_fashion(tmp_path, packed=True)
    path = tmp_path / "train-labels-idx1-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(ns.DataError, match=f"^{path}: .* cannot be unpacked"):
        load_dataset("fashion-mnist", "train", tmp_path)


@pytest.mark.parametrize(("name", "files"), [("cifar10", CIFAR10), ("cifar100", CIFAR100)])
def test_cifar(tmp_path, name, files):
    folder = write_cifar(tmp_path, files, each=1)
    write_cifar_names(folder, files, [f"class {n}" for n in range(files.classes)])
    for split, batches in (("train", len(files.train)), ("test", 1)):
        dataset = load_dataset(name, split, tmp_path)
        assert dataset.images.shape == (batches * files.classes, 3, 32, 32)
        assert torch.equal(dataset.images[:, 0, 0, 0].long(), dataset.labels)
        assert dataset.labels.bincount().tolist() == [batches] * files.classes
        assert dataset.classes[3] == "class 3"
    assert load_dataset(name, "test", folder).fingerprint == dataset.fingerprint


@pytest.mark.parametrize(("name", "splits"), [("cifar-fs", CIFAR_FS), ("fc100", FC100)])
def test_few_shot_cifar(tmp_path, name, splits):
    folder = write_cifar(tmp_path, CIFAR100, each=2)
    write_cifar_names(folder, CIFAR100, CIFAR100_NAMES)
    seen = []
    for split, classes in splits.items():
        dataset = load_dataset(name, split, tmp_path)
        assert dataset.classes == classes
        assert dataset.labels.bincount().tolist() == [4] * len(classes)  # both batches
        original = [CIFAR100_NAMES[n] for n in dataset.images[:, 0, 0, 0].tolist()]
        assert original == [dataset.classes[n] for n in dataset.labels.tolist()]
        seen += classes
    assert sorted(seen) == CIFAR100_NAMES
    assert len(CIFAR100_NAMES) == 100
    write_cifar_names(folder, CIFAR100, ["sheep", *CIFAR100_NAMES[1:]])
    with pytest.raises(ns.DataError, match=r"files without apple\. .* get cifar100"):
        load_dataset(name, "train", tmp_path)


def test_the_sizes_of_the_published_splits():
    assert [len(classes) for classes in CIFAR_FS.values()] == [64, 16, 20]
    assert [len(classes) for classes in FC100.values()] == [60, 20, 20]


class Malicious:
    """A pickle that writes a file when it is loaded."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


class Evaluated(Malicious):
    """The same by a function that is built in."""

    def __reduce__(self):
        return eval, (f"__import__('os').mkdir({str(self.path)!r})",)


def hidden_in_an_array(path):
    return {"data": np.array([Malicious(path)], dtype=object), "labels": [0]}


@pytest.mark.parametrize(
    "make", [Malicious, Evaluated, lambda path: {"data": Malicious(path)}, hidden_in_an_array]
)
@pytest.mark.parametrize("protocol", [0, 2, 5])
def test_a_malicious_pickle_is_refused(tmp_path, make, protocol):
    folder, trap = cifar10(tmp_path), tmp_path / "sprung"
    (folder / "test_batch").write_bytes(pickle.dumps(make(trap), protocol))
    with pytest.raises(ns.DataError, match=r"test_batch: .*(mkdir|eval|'O8') is not allowed"):
        load_dataset("cifar10", "test", tmp_path)
    assert not trap.exists()
    pickle.loads((folder / "test_batch").read_bytes())
    assert trap.exists()  # or the test would prove nothing


def cifar10(tmp_path):
    folder = write_cifar(tmp_path, CIFAR10, each=1)
    write_cifar_names(folder, CIFAR10, "abcdefghij")
    return folder


@pytest.mark.parametrize("module", [b"numpy.core.multiarray", b"numpy._core.multiarray"])
def test_arrays_of_either_numpy_are_read(tmp_path, module):
    folder = cifar10(tmp_path)
    path = folder / "test_batch"
    before = load_dataset("cifar10", "test", tmp_path).fingerprint
    content = path.read_bytes()
    assert b"cnumpy._core.multiarray\n" in content or b"cnumpy.core.multiarray\n" in content
    for written in (b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n"):
        content = content.replace(written, b"c" + module + b"\n")
    path.write_bytes(content)
    assert load_dataset("cifar10", "test", tmp_path).fingerprint == before


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "cannot be read"),
        (b"\x80\x02}q\x00(U\x04da", "cannot be read: .*remain"),
        (pickle.dumps([1]), "expected a dictionary, got list"),
        (pickle.dumps({}), "'data' to be rows of bytes, got NoneType"),
        (pickle.dumps({"data": np.zeros((2, 9), np.uint8)}, 2), "3 × 32 × 32, got rows of 9"),
        (
            pickle.dumps({"data": np.zeros((2, 3072), np.uint8), "labels": [1]}, 2),
            "list 2 labels, got 1 of them",
        ),
        (
            pickle.dumps({"data": np.zeros((1, 3072), np.uint8), "labels": [10]}, 2),
            "labels from 0 to 9",
        ),
        (
            b"c_codecs\nencode\n(X\x01\x00\x00\x00aX\x03\x00\x00\x00hextR.",
            "codec 'hex' is not allowed",
        ),
    ],
)
def test_damaged_pickles(tmp_path, content, said):
    path = cifar10(tmp_path) / "test_batch"
    path.write_bytes(content)
    with pytest.raises(ns.DataError, match=f"^{path}: .*{said}"):
        load_dataset("cifar10", "test", tmp_path)


def test_truncated_batches(tmp_path):
    path = cifar10(tmp_path) / "data_batch_3"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ns.DataError, match=f"^{path}: .* cannot be read"):
        load_dataset("cifar10", "train", tmp_path)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("cifar10", r"data_batch_1, .* in {0}/cifar-10-batches-py or {0}, .*nsl data get cifar10"),
        (
            "cifar-fs",
            r"the files train, test, meta in {0}/cifar-100-python .*nsl data get cifar100",
        ),
        ("fashion-mnist", r"train-images-idx3-ubyte .*{0}/FashionMNIST/raw.* get fashion-mnist"),
        ("omniglot", r"ALPHABET/CHARACTER in {0}/omniglot-py/images_background.* get omniglot"),
        ("mini-imagenet", r"train.csv and the folder images in {0}/mini-imagenet.*image-net.org"),
        ("imagenet", r"class folders \(WNID\) in {0}/imagenet/train or {0}/train,.*image-net.org"),
        ("imagefolder", r"no folder {0}/gone. Put your images there"),
    ],
)
def test_what_is_missing_is_said(tmp_path, name, said):
    root = tmp_path / "gone" if name == "imagefolder" else tmp_path
    with pytest.raises(ns.DataError, match=f"^{name}: expected .*{said.format(tmp_path)}"):
        load_dataset(name, "train", root)


def test_a_folder_in_place_of_a_name(tmp_path):
    (tmp_path / "birds").mkdir()
    with pytest.raises(ns.UnknownNameError, match=r"use data 'imagefolder' with data_dir .*birds"):
        dataset_info(str(tmp_path / "birds"))
