"""Run folders belong to one process at a time, and ``--force`` replaces them completely."""

import json

import pytest
from support.command import nsl, one_line

import neural_similarity as ns
from neural_similarity import _io
from neural_similarity.train import Run, TrainConfig
from neural_similarity.train.runs.comparisons import read_comparison, write_comparison
from neural_similarity.train.runs.folders import alone, replaced, sharing

CONFIGS = {"none": TrainConfig(seed=0), "static": TrainConfig(seed=0, similarity="static")}
OTHERS = {"none": TrainConfig(seed=1)}
BOTH = ("train", "--similarity", "none,static", "--steps", 1, "--batch-size", 600, "--force")


@pytest.fixture
def comparison(tmp_path):
    """A folder of two runs, the first with weights and a test."""
    folder = tmp_path / "all"
    with alone(folder):
        write_comparison(folder, CONFIGS, force=False)
    for name, config in CONFIGS.items():
        Run(folder / name, config).create()
    (folder / "none" / "results").mkdir()
    (folder / "none" / "last.safetensors").write_text("weights")
    return folder


def content(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("held", ["", "none", "static"])
def test_a_comparison_that_somebody_trains_is_not_replaced(
    held, comparison, capsys, monkeypatch, tmp_path
):
    monkeypatch.chdir(tmp_path)
    before = content(tmp_path)
    with Run(comparison / held, CONFIGS["none"]).alone():
        for words in (BOTH, ("train", "--steps", 1, "--force")):
            line = one_line(nsl(capsys, monkeypatch, *words, "--out", "all"))
            assert "another process is training or testing in. Wait until" in line
    assert content(tmp_path) == before


@pytest.mark.parametrize("kind", ["test", "merge"])
def test_a_run_that_somebody_tests_or_merges_is_not_replaced(kind, comparison):
    run = Run(comparison / "none", CONFIGS["none"])
    before = content(comparison)

    def attempt():
        with run.alone():
            run.create(force=True)

    writing = {"test": sharing(run.folder / "results"), "merge": _io.scratch_folder(run.folder)}
    with writing[kind], pytest.raises(ns.RunError, match="is training or testing in"):
        attempt()
    assert content(comparison) == before
    attempt()
    assert [path.name for path in run.folder.iterdir()] == ["config.json"]


def test_several_may_test_at_once(tmp_path):
    with sharing(tmp_path / "results"), sharing(tmp_path / "results"):
        pass


def test_a_comparison_is_replaced_whole(comparison):
    with alone(comparison):
        write_comparison(comparison, OTHERS, force=True)
    assert read_comparison(comparison, TrainConfig) == OTHERS
    assert [path.name for path in comparison.iterdir()] == ["comparison.json"]


def test_a_replacement_that_fails_changes_nothing(comparison):
    before = content(comparison)

    def attempt():
        with alone(comparison), replaced(comparison) as new:
            (new / "comparison.json").write_text("{}")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        attempt()
    assert content(comparison) == before
    assert not list(comparison.rglob(".nsl-*"))


@pytest.mark.parametrize("reader", ["open", "comparison", "check"])
def test_a_replacement_that_was_killed_is_finished_by_whoever_comes(reader, tmp_path):
    folder = tmp_path / "run"
    run = Run(folder, OTHERS["none"])
    run.create()
    journal = folder / ".nsl-swap-x"
    (journal / "old").mkdir(parents=True)
    (journal / "new").mkdir()
    (folder / "config.json").rename(journal / "old" / "config.json")
    (journal / "new" / "config.json").write_text(json.dumps(CONFIGS["none"].to_dict()))
    (journal / "put-new-in").write_text('{"old": ["config.json"], "new": ["config.json"]}')
    if reader == "comparison":
        assert read_comparison(folder, TrainConfig) is None
    elif reader == "check":
        run.check_folder(resume=False, force=True)
    assert Run.open(folder).config == CONFIGS["none"]
    assert [path.name for path in folder.iterdir()] == ["config.json"]


def test_a_disk_that_is_full_is_told_of_the_run(comparison, monkeypatch):
    def full(file, content):
        raise OSError(28, "No space left on device", str(file))

    monkeypatch.setattr("neural_similarity.train.runs.run_folder.write_file", full)
    run, before = Run(comparison / "none", CONFIGS["none"]), content(comparison)
    with run.alone(), pytest.raises(ns.RunError, match=r"none/config\.json: expected to write"):
        run.create(force=True)
    assert content(comparison) == before


def test_a_file_in_place_of_the_folder(tmp_path, capsys, monkeypatch):
    (tmp_path / "all").write_text("mine")
    line = one_line(nsl(capsys, monkeypatch, *BOTH, "--out", tmp_path / "all"))
    assert "expected a run to replace, got something else" in line
    assert (tmp_path / "all").read_text() == "mine"
