"""Impossible sizes and devices: an error of one line, and nothing on disk changes."""

import json

import pytest
from support.command import nsl, one_line
from support.data_files import image_folder

from neural_similarity.train import TrainConfig


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("device=meta", "expected a device of this machine that can compute, got 'meta'"),
        ("image_size=999999999", "expected image_size of at most 4,096, got 999,999,999"),
        ("options.width=999999999", "weights of at most 4.3 GB"),
        ("options.width=" + "9" * 5000, "expected width to be a whole number"),
        ("options.width=" + "[" * 5000, "expected width to be a whole number"),
        ("workers=999999999", "expected at most 256 workers"),
    ],
)
@pytest.mark.parametrize("similarity", ["none", "none,static"])
def test_train(setting, message, similarity, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    before = json.dumps(TrainConfig().to_dict())
    (tmp_path / "run" / "config.json").write_text(before)
    (tmp_path / "run" / "metrics.jsonl").write_text("")
    options = ("--data", "digits", "--similarity", similarity, "--out", "run", "--force")
    assert message in one_line(nsl(capsys, monkeypatch, "train", *options, "--set", setting))
    assert (tmp_path / "run" / "config.json").read_text() == before


def test_fewshot(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    options = ("--method", "proto,nearest", "--set", "device=meta", "--out", "run")
    assert "got 'meta'" in one_line(nsl(capsys, monkeypatch, "fewshot", *options))
    assert list(tmp_path.iterdir()) == []


def test_adapt(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    image_folder(tmp_path / "mine", images=2)
    options = ("--out", "birds", "--image-size", "999999999", "--no-onnx")
    ended = nsl(capsys, monkeypatch, "adapt", "mine", *options)
    assert "expected image_size of at most 4,096" in one_line(ended)


def test_no_memory_left(capsys, monkeypatch, tmp_path):
    def fail(*args, **kwargs):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9")

    monkeypatch.setattr("neural_similarity.train.build.load_dataset", fail)
    monkeypatch.chdir(tmp_path)
    ended = nsl(capsys, monkeypatch, "train", "--data", "digits", "--similarity", "none")
    assert "expected a task that fits in memory" in one_line(ended)
