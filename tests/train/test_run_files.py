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
        (b"\xff\xff", r"metrics\.jsonl: expected JSON, got a damaged line \('utf-8' codec"),
        (b"5\n", "expected an object with kind and step in line 1, got 5. Delete that line"),
        (b"{}\n", r"expected an object with kind and step in line 1, got \{\}"),
        (b"[]\n", r"expected an object with kind and step in line 1, got \[\]"),
        (b"null\n", "expected an object with kind and step in line 1, got null"),
        (b'{"kind": "eval", "step": "a"}\n', 'in line 1, got {"kind": "eval", "step": "a"}'),
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


def test_lines_of_another_kind(tmp_path):
    file = tmp_path / "some.jsonl"
    file.write_text('{"first": 0}\n{}\n{"torn')
    assert MetricsFile.read(file, frozenset()) == [{"first": 0}, {}]
    file.write_text("7\n")
    with pytest.raises(ns.RunError, match="expected an object in line 1, got 7"):
        MetricsFile.read(file, frozenset())


@pytest.mark.parametrize("damage", [[5], [None], [{}], [{"classes": ["a"] * 40}]])
def test_a_damaged_environment_is_named(run, damage):
    (run.folder / "environment.json").write_text(json.dumps(damage))
    message = r"environment\.json: expected an object with classes, data_copies, .* got "
    for use in (run.environment, run.load_model, lambda: train(None, run.folder, resume=True)):
        with pytest.raises(ns.RunError, match=message) as caught:
            use()
        assert len(str(caught.value)) < len(str(run.folder)) + 300


def test_a_plain_run_is_not_merged(run, capsys, monkeypatch):
    ended = nsl(capsys, monkeypatch, "merge", run.folder)
    assert ended.code == 2
    assert "expected a run with a static similarity, got one without. There is nothing" in ended.err
    assert "last.safetensors already holds the weights of a plain network" in ended.err
