"""Runs name the code that trained them, as it was when they were started."""

import re
from dataclasses import replace

import pytest
from support.killing import Killed, killed_at
from support.train_runs import SMALL

from neural_similarity.train import code_version, train

MODULE = "neural_similarity.train.commit"


def test_the_version_is_that_of_the_first_call(monkeypatch):
    before = code_version()
    assert re.fullmatch(r"unknown|[\w.-]+", before)
    monkeypatch.setattr(f"{MODULE}.subprocess.run", lambda *_, **__: pytest.fail("again"))
    assert code_version() == before


def test_without_a_clone_or_without_git_it_is_unknown(monkeypatch, tmp_path):
    monkeypatch.setattr(f"{MODULE}._ROOT", tmp_path)
    assert code_version.__wrapped__() == "unknown"
    (tmp_path / ".git").touch()
    assert code_version.__wrapped__() == "unknown", "not a clone after all"

    def missing(*args, **kwargs):
        raise FileNotFoundError("git")

    monkeypatch.setattr(f"{MODULE}.subprocess.run", missing)
    assert code_version.__wrapped__() == "unknown"


def test_a_run_names_every_version_that_trained_it(monkeypatch, tmp_path):
    config, folder = replace(SMALL, epochs=1.0), tmp_path / "run"

    def train_by(commit, until=None):
        monkeypatch.setattr("neural_similarity.train.runs.environment.code_version", lambda: commit)
        callback = None if until is None else killed_at(until)
        return train(config, folder, resume=True, callback=callback)

    for commit, step in (("first", 1), ("second", 2), ("first", 3)):
        with pytest.raises(Killed):
            train_by(commit, step)
    run = train_by("third")
    assert run.commits() == ["second", "first", "third"]
    assert run.environment()["commit"] == "third"
    assert train_by("fourth").commits() == ["second", "first", "third"], (
        "there was nothing to train"
    )
