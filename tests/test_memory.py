"""What cannot fit in memory is refused before it is allocated."""

import pytest
import torch

import neural_similarity as ns
from neural_similarity import _memory
from neural_similarity.adapt import Preprocessing
from neural_similarity.data import load_dataset
from neural_similarity.train import TrainConfig
from neural_similarity.train.build import build_data
from neural_similarity.train.distributed import World, find_device

LARGE = ns.DynamicSimilarity(predictor=ns.SpherePredictor(10**10))


def test_the_memory_of_this_machine():
    assert 2**28 < _memory.total_memory() <= 2**50


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("cnn9", {"width": 999_999_999}, r"at most 4\.3 GB, got 108\.0 GB\. Use smaller"),
        ("cnn9", {"width": 30_000}, "got 32.4 GB"),
        ("cnn9", {"width": 10**300}, "got far more"),
        ("cnn9", {"hidden": 10**11}, "weights of at most"),
        ("cnn9", {"num_classes": 10**11}, "weights of at most"),
        ("cnn9", {"depths": (10**9, 1, 1)}, "CNN: expected at most 2,000 layers, got 1,000,0"),
        ("cnn9", {"image_size": 999_999_999}, "image_size of at most 4,096, got 999,999,999"),
        ("resnet18", {"depth": 8_000_002}, "ResNet: expected at most 2,000 layers"),
        ("resnet18", {"widths": (10**9, 1, 1, 1)}, "weights of at most"),
        ("spherenet9", {"widths": (10**9, 1, 1)}, "weights of at most"),
        ("cnn9", {"similarity": LARGE}, "weights of at most"),
    ],
)  # fmt: skip
def test_networks(name, options, message):
    with pytest.raises(ns.ShapeError, match=message):
        ns.create_model(name, **options)


def test_many_small_layers_are_added_up(monkeypatch):
    ns.create_model("cnn9", width=8)
    monkeypatch.setattr(_memory, "total_memory", lambda: 10_000)
    with pytest.raises(ns.ShapeError, match=r"expected the network to fit in this machine's mem"):
        ns.create_model("cnn9", width=8)
    with torch.device("meta"):  # takes none
        assert _memory.total_memory() == 10_000
        with _memory.limited_tensors("here", "it", "Stop"):
            assert torch.empty(10**6).is_meta


def test_images(monkeypatch):
    with pytest.raises(ns.ShapeError, match="load_dataset: expected image_size of at most 4,096"):
        load_dataset("digits", "train", image_size=999_999_999)
    with pytest.raises(ns.ShapeError, match="Preprocessing: expected image_size of at most 4,096"):
        Preprocessing(999_999_999, (0.5,), (0.5,))
    monkeypatch.setattr(_memory, "total_memory", lambda: 2**20)
    with pytest.raises(ns.ShapeError, match=r"expected the images to fit .* smaller image_size"):
        load_dataset("digits", "train", image_size=100)
    assert len(load_dataset("digits", "train")) > 1000


def test_batches(monkeypatch):
    monkeypatch.setattr(_memory, "total_memory", lambda: 2**20)
    build_data(TrainConfig(data="digits", batch_size=1000), World())
    monkeypatch.setattr(_memory, "total_memory", lambda: 2**16)
    with pytest.raises(ns.ShapeError, match="train: expected a batch of images to fit"):
        build_data(TrainConfig(data="digits", batch_size=10**12), World())


def test_processes():
    with pytest.raises(ns.RunError, match="at most 256 workers, got 99999"):
        TrainConfig(workers=99999)


@pytest.mark.parametrize("device", ["meta", "cuda:77", "no such"])
def test_devices(device):
    with pytest.raises(ns.RunError, match=r"configuration: expected (a )?device .*'auto'"):
        find_device(device)


def test_the_processor_is_a_device():
    assert find_device("cpu") == torch.device("cpu")
