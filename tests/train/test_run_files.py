"""Damaged files of a run: reported in one sentence, with nothing changed."""

import json
import os

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from support.command import nsl
from torch import nn

import neural_similarity as ns
from neural_similarity.train import Run, TrainConfig, build_model, build_optimizer, train
from neural_similarity.train.checkpoint import read_weights, resume_checkpoint, write_weights
from neural_similarity.train.metrics import MetricsFile

SMALL = TrainConfig(
    options={"width": 4, "hidden": 8}, batch_size=314, steps=1, log_every=1, threads=1,
    optimizer="adam",
)  # fmt: skip
OPTIMISER = "last-1.optimizer.safetensors"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return train(SMALL, tmp_path_factory.mktemp("damaged") / "run").folder


@pytest.fixture
def run(trained):
    """The run, put back afterwards."""
    names = ("metrics.jsonl", "environment.json", "last.safetensors", OPTIMISER)
    files = {name: trained / name for name in names}
    before = {name: file.read_bytes() for name, file in files.items()}
    yield Run.open(trained)
    for name, file in files.items():
        file.unlink()
        file.write_bytes(before[name])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (b"\xff\xff", r"metrics\.jsonl, line 1: expected JSON, got damaged text \('utf-8' codec"),
        (b"5\n", "line 1: expected the content to be an object, got 5. Delete that line"),
        (b"{}\n", r"line 1: expected 'kind', 'step' to be present, got \{\}"),
        (b"[]\n", r"line 1: expected the content to be an object, got \[\]"),
        (b"null\n", "line 1: expected the content to be an object, got None"),
        (b'{"kind": "eval", "step": "a"}\n', "line 1: expected 'step' to be an integer, got 'a'"),
        (b'{"kind": "new", "step": -1}\n', "'step' to be an integer of at least 0, got -1"),
        (
            b'{"kind": "eval", "step": 3}\n',
            "line 1: expected 'epoch', 'seconds', 'error' to be present, got",
        ),
        (b"[" * 10000 + b"\n", "line 1: expected JSON, got damaged text"),
        (b"[" * 99 + b"]" * 99 + b"\n", "line 1: expected JSON of at most 64 levels"),
    ],
)
def test_damaged_metrics_are_named(run, damage, message):
    file = run.folder / "metrics.jsonl"
    file.write_bytes(damage + file.read_bytes())
    before = {path: path.read_bytes() for path in run.folder.iterdir()}
    with pytest.raises(ns.RunError, match=message):
        train(None, run.folder, resume=True)
    with pytest.raises(ns.RunError, match=message):
        run.metrics()
    assert {path: path.read_bytes() for path in run.folder.iterdir()} == before


def test_lines_of_another_kind_and_a_torn_one(tmp_path):
    file = tmp_path / "some.jsonl"
    file.write_text('{"kind": "mine", "step": 2, "value": [1]}\n{"torn')
    assert MetricsFile.read(file) == [{"kind": "mine", "step": 2, "value": [1]}]


@pytest.mark.parametrize("damage", [[5], [None], [{}], [{"classes": ["a"] * 40}]])
def test_a_damaged_environment_is_named(run, damage):
    (run.folder / "environment.json").write_text(json.dumps(damage))
    message = r"environment\.json: expected .*(an object|'data_copies').*, got "
    for use in (run.environment, run.load_model, lambda: train(None, run.folder, resume=True)):
        with pytest.raises(ns.RunError, match=message) as caught:
            use()
        assert len(str(caught.value)) < len(str(run.folder)) + 300


def test_a_plain_run_is_not_merged(run, capsys, monkeypatch):
    ended = nsl(capsys, monkeypatch, "merge", run.folder)
    assert ended.code == 2
    assert "expected a run with a static similarity, got one without. There is nothing" in ended.err
    assert "last.safetensors already holds the weights of a plain network" in ended.err


def rewrite(file, tensors=None, metadata=None):
    """Write a checkpoint with some tensors and metadata exchanged."""
    with safe_open(file, framework="pt") as opened:
        old = opened.metadata()
    save_file({**load_file(file), **(tensors or {})}, file, {**old, **(metadata or {})})


def resume(run):
    model = build_model(run.config, 10, 1, 8)
    return resume_checkpoint(run.folder, model, build_optimizer(run.config, model))


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_weights_that_are_not_finite_are_named(run, value, capsys, monkeypatch):
    name = "classifier.weight"
    weight = load_file(run.folder / "last.safetensors")[name]
    weight[0, 0] = value
    rewrite(run.folder / "last.safetensors", {name: weight})
    message = rf"last\.safetensors: expected finite values, got NaN or infinity for 1 of .*'{name}'"
    for use in (run.load_model, lambda: train(None, run.folder, resume=True)):
        with pytest.raises(ns.RunError, match=message):
            use()
    ended = nsl(capsys, monkeypatch, "eval", run.folder)
    assert ended.code == 2
    assert "expected finite values" in ended.err


def test_optimisers_that_are_not_finite_are_named(run):
    file = run.folder / OPTIMISER
    tensors = load_file(file)
    rewrite(file, {"0.exp_avg_sq": torch.full_like(tensors["0.exp_avg_sq"], torch.inf)})
    resume(run)  # squares may overflow while the weights are finite
    for name in ("0.exp_avg", "0.exp_avg_sq"):
        rewrite(file, {name: torch.full_like(tensors[name], torch.nan)})
        with pytest.raises(ns.RunError, match=f"NaN or infinity for .* '{name}'"):
            resume(run)
        rewrite(file, tensors)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"99.exp_avg": torch.ones(2)}, r"tensors that fit the optimiser, got '99.exp_avg'"),
        ({"x.exp_avg": torch.ones(2)}, r"tensors that fit the optimiser, got 'x.exp_avg'"),
        ({"0.exp_avg": torch.ones(2)}, r"got '0.exp_avg' of shape \(2,\)"),
        ({"0.step": torch.tensor(0.0)}, "got '0.step' of shape"),
        ({"0.step": torch.ones(2)}, "got '0.step' of shape"),
        ({"0.other": torch.ones(4, 1, 3, 3)}, "expected exp_avg, exp_avg_sq, step for parameter 0"),
    ],
)
def test_an_optimiser_that_does_not_fit_is_named(run, tensors, message):
    rewrite(run.folder / OPTIMISER, tensors)
    with pytest.raises(ns.RunError, match=message):
        resume(run)


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"step": '"three"'}, r"last\.safetensors: expected 'step' to be an integer, got 'three'"),
        ({"seconds": "null"}, "expected 'seconds' to be a finite number, got None"),
        ({"finished": "1"}, "expected 'finished' to be true or false, got 1"),
        ({"best_error": "NaN"}, "expected 'best_error' to be a number, got nan"),
        ({"aliases": "[1]"}, r"to be an object, got \[1\]"),
        ({"aliases": '{"a": "b"}'}, "expected the weights of 'b', got none"),
        ({"step": "[" * 99999}, "'step': expected JSON, got damaged text"),
    ],
)
def test_metadata_of_the_wrong_type_is_named(run, metadata, message):
    rewrite(run.folder / "last.safetensors", metadata=metadata)
    before = {path: path.read_bytes() for path in run.folder.iterdir()}
    with pytest.raises(ns.RunError, match=message):
        train(None, run.folder, resume=True)
    assert {path: path.read_bytes() for path in run.folder.iterdir()} == before


def test_a_pipe_in_place_of_a_file_does_not_hang(run):
    (run.folder / OPTIMISER).unlink()
    os.mkfifo(run.folder / OPTIMISER)
    with pytest.raises(
        ns.RunError, match=r"got a file that cannot be read .a named pipe, not a reg"
    ):
        resume(run)


class Masked(nn.Module):
    """A network with an infinite constant, as masks of attention are."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.register_buffer("mask", torch.tensor([0.0, -torch.inf]))


def test_an_infinite_value_may_stand_where_the_network_has_it(tmp_path):
    file = tmp_path / "a.safetensors"
    write_weights(file, Masked(), {})
    read_weights(file, Masked())
    rewrite(file, {"mask": torch.tensor([-torch.inf, 0.0])})
    with pytest.raises(ns.RunError, match="NaN or infinity for 1 of 2 values of 'mask'"):
        read_weights(file, Masked())


def test_views_of_one_storage_are_told_apart_by_their_strides(tmp_path):
    class Transposed(torch.nn.Module):
        def __init__(self, weight):
            super().__init__()
            self.weight = torch.nn.Parameter(weight)
            self.register_buffer("turned", self.weight.data.t())

    written = Transposed(torch.arange(9.0).reshape(3, 3))
    write_weights(tmp_path / "a.safetensors", written, {"step": 1})
    read = Transposed(torch.zeros(3, 3))
    read.turned = torch.zeros(3, 3)
    read_weights(tmp_path / "a.safetensors", read)
    assert torch.equal(read.turned, written.weight.t())
