"""Files of a run that were damaged: said in one sentence, with nothing changed."""

import json

import pytest
from support.command import nsl

import neural_similarity as ns
from neural_similarity.train import Run, TrainConfig, train
from neural_similarity.train.metrics import MetricsFile

SMALL = TrainConfig(
    options={"width": 4, "hidden": 8}, batch_size=314, steps=1, log_every=1, threads=1
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return train(SMALL, tmp_path_factory.mktemp("damaged") / "run").folder


@pytest.fixture
def run(trained):
    """The run, put back afterwards."""
    files = {name: trained / name for name in ("metrics.jsonl", "environment.json")}
    before = {name: file.read_bytes() for name, file in files.items()}
    yield Run.open(trained)
    for name, file in files.items():
        file.write_bytes(before[name])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (b"\xff\xff", r"metrics\.jsonl, line 1: expected JSON, got damaged text \('utf-8' codec"),
        (b"5\n", "line 1: expected the content to be an object, got 5. Delete that line"),
        (b"{}\n", r"line 1: expected 'kind', 'step', got \{\} without"),
        (b"[]\n", r"line 1: expected the content to be an object, got \[\]"),
        (b"null\n", "line 1: expected the content to be an object, got None"),
        (b'{"kind": "eval", "step": "a"}\n', "line 1: expected 'step' to be an integer, got 'a'"),
        (b'{"kind": "new", "step": -1}\n', "'step' to be an integer of at least 0, got -1"),
        (b'{"kind": "eval", "step": 3}\n', "line 1: expected 'epoch', 'seconds', 'error', got"),
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
