"""`nsl reproduce` as a command: what it says, and how it stops."""

import json
import re
import signal
from pathlib import Path

import pytest
from rich.progress import Progress
from support.command import nsl, one_line

from experiments.reproduce import _Shown
from experiments.tables.registry import TABLES
from experiments.tables.row import BUDGETS
from neural_similarity.cli._progress import TrainingBar


def test_the_command(capsys, monkeypatch, tmp_path):
    results = ("--results", tmp_path / "results")
    listed = nsl(capsys, monkeypatch, "reproduce", "list", *results)
    assert listed.code == 0
    assert all(name in listed.out for name in (*TABLES, *BUDGETS))
    done = nsl(
        capsys, monkeypatch, "reproduce", "table4", "--budget", "smoke", "--seeds", 1, "--rows",
        "cnn", *results, "--work", tmp_path / "work",
    )  # fmt: skip
    assert done.code == 0, done.err
    assert "runs: 1, to be done: 1\n" in done.out
    again = nsl(capsys, monkeypatch, "reproduce", "list", "--budget", "smoke", *results)
    assert re.search(r"^  cnn +Baseline CNN +1 of 3$", again.out, re.MULTILINE)
    file = tmp_path / "results" / "table4" / "smoke" / "cnn-0.json"
    record = json.loads(file.read_text())
    file.write_text(json.dumps({**record, "config": {**record["config"], "lr": 7.0}}))
    changed = nsl(capsys, monkeypatch, "reproduce", "list", "--budget", "smoke", *results)
    assert "1 of 3, 1 with other settings" in changed.out


def test_without_the_data(capsys, monkeypatch, tmp_path):
    where = ("--results", tmp_path / "r", "--work", tmp_path / "w", "--data-dir", tmp_path)
    said = one_line(nsl(capsys, monkeypatch, "reproduce", "table4", "--rows", "cnn", *where))
    assert "cifar10: expected the files" in said
    assert not (tmp_path / "r").exists()


def test_ctrl_c_is_one_line_and_the_command_goes_on(capsys, monkeypatch, tmp_path):
    def stopped(self, line):
        if line["kind"] == "step" and line["step"] == 2:
            signal.raise_signal(signal.SIGINT)

    words = (
        "reproduce", "table4", "--budget", "smoke", "--seeds", 1, "--rows", "cnn",
        "--results", tmp_path / "results", "--work", tmp_path / "work",
    )  # fmt: skip
    with monkeypatch.context() as patch:
        patch.setattr(TrainingBar, "__call__", stopped)
        ended = nsl(capsys, patch, *words)
    assert (ended.code, ended.err) == (130, "nsl: stopped. The same command goes on.\n")
    assert not (tmp_path / "results").exists()
    done = nsl(capsys, monkeypatch, *words)
    assert done.code == 0
    assert "table4/smoke/cnn-0: error" in done.out


def test_bars_show_training_and_tests_and_go_when_they_are_over():
    with Progress(*TrainingBar.columns(), disable=True) as bar:
        shown = _Shown(bar)
        shown.training("finetune")({"kind": "step", "step": 2, "total": 3, "loss": 1.0})
        (task,) = bar.tasks
        assert (task.description, task.completed, task.total) == ("finetune", 2, 3)
        for done in (4, 8):
            shown.tests("finetune 1shot", done, 8)
            (task,) = bar.tasks
            assert (task.description, task.completed, task.total) == ("finetune 1shot", done, 8)
        shown.training("nearest")
        assert [task.description for task in bar.tasks] == ["nearest"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("table4", "--budget", "long"), "expected a budget among smoke, short, paper"),
        (("table4", "--rows", "cnm"), "expected a row among cnn, cnn-plus"),
        (("table4", "--seeds", "0"), "--seeds"),
        (("tabel4",), "No such command 'tabel4'"),
    ],
)
def test_bad_input(words, said, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    ended = nsl(capsys, monkeypatch, "reproduce", *words)
    assert said in one_line(ended)
    assert list(tmp_path.iterdir()) == []


def test_without_the_repository(capsys, monkeypatch, tmp_path):
    import neural_similarity.cli.reproduce as command

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "__file__", str(tmp_path / "a" / "b" / "c" / "reproduce.py"))
    said = one_line(nsl(capsys, monkeypatch, "reproduce", "list"))
    assert "Clone the repository" in said
    assert Path("experiments").exists() is False
