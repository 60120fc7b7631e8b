"""`nsl reproduce` as a command: what it runs, writes and prints, and how it stops."""

import json
import re
import signal
import sys
from pathlib import Path
from types import ModuleType

import pytest
from rich.progress import Progress
from support.command import nsl, one_line
from support.results_cases import keep_error

import neural_similarity as ns
from experiments import reproduce
from experiments.report.write import BEGIN, END
from experiments.tables import BUDGETS, TABLES
from experiments.tables.equal_cost import STUDIES
from neural_similarity.cli.shared.experiments import clone_folder, load_experiments
from neural_similarity.cli.shared.progress import QueueBar, TrainingBar

ROOT = Path(__file__).parents[2]


def test_list_and_run(capsys, monkeypatch, tmp_path):
    results = ("--results", tmp_path / "results")
    listed = nsl(capsys, monkeypatch, "reproduce", "list", *results)
    assert listed.code == 0
    assert all(name in listed.out for name in (*TABLES, *BUDGETS))
    for sign in ("NSN", "DNS", "UNS", "†"):
        assert f"{sign}: " in listed.out.partition("table6")[0], "explained before it is used"
    done = nsl(
        capsys, monkeypatch, "reproduce", "table4", "--budget", "smoke", "--seeds", 1, "--rows",
        "cnn", *results, "--work", tmp_path / "work",
    )  # fmt: skip
    assert done.code == 0, done.err
    assert "runs: 1, missing: 1\n" in done.out
    again = nsl(capsys, monkeypatch, "reproduce", "list", "--budget", "smoke", *results)
    assert re.search(r"^  cnn +Baseline CNN +1 of 3$", again.out, re.MULTILINE)
    file = tmp_path / "results" / "table4" / "smoke" / "cnn-0.json"
    record = json.loads(file.read_text())
    file.write_text(json.dumps({**record, "config": {**record["config"], "lr": 7.0}}))
    changed = nsl(capsys, monkeypatch, "reproduce", "list", "--budget", "smoke", *results)
    assert "1 of 3, 1 with other settings" in changed.out


@pytest.mark.parametrize(
    ("words", "tables", "rows"),
    [
        (("table4", "--rows", "cnn, cnn-plus"), ["table4"], ["cnn", "cnn-plus"]),
        (("run", "table4"), ["table4"], []),
        (("run", "table4", "table2"), ["table4", "table2"], []),
        (("all",), [*TABLES, *STUDIES], []),
    ],
)
def test_every_way_to_name_tables(words, tables, rows, capsys, monkeypatch):
    calls = []
    monkeypatch.setattr(reproduce, "run", lambda *args, **kwargs: calls.append((args, kwargs)))
    assert nsl(capsys, monkeypatch, "reproduce", *words, "--seeds", 2).code == 0
    ((args, kwargs),) = calls
    assert args == (tables, "short", 2, rows)
    assert (kwargs["work"], kwargs["results"]) == (Path("runs/reproduce"), reproduce.RESULTS)


def test_elsewhere_the_folders_are_printed_first(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(reproduce, "run", lambda *args, log, **kwargs: log("runs: 0"))
    monkeypatch.chdir(tmp_path)
    folders = f"results: {reproduce.RESULTS}, runs: {tmp_path.resolve() / 'runs' / 'reproduce'}"
    printed = nsl(capsys, monkeypatch, "reproduce", "table4").out
    assert printed == f"{folders}\nruns: 0\n"
    monkeypatch.setattr(reproduce, "report", lambda *args, **kwargs: [])
    printed = nsl(capsys, monkeypatch, "reproduce", "report").out
    assert printed == f"results: {reproduce.RESULTS}, report: in {ROOT}\n"
    monkeypatch.chdir(ROOT)
    assert nsl(capsys, monkeypatch, "reproduce", "table4").out == "runs: 0\n"
    assert nsl(capsys, monkeypatch, "reproduce", "report").out == ""


def test_without_the_data(capsys, monkeypatch, tmp_path):
    where = ("--results", tmp_path / "r", "--work", tmp_path / "w", "--data-dir", tmp_path)
    error = one_line(nsl(capsys, monkeypatch, "reproduce", "table4", "--rows", "cnn", *where))
    assert "cifar10: expected the files" in error
    assert not (tmp_path / "r").exists()


def test_ctrl_c_is_one_line_and_the_command_continues(capsys, monkeypatch, tmp_path):
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
    assert (ended.code, ended.err) == (130, "nsl: stopped. Run the same command to continue.\n")
    assert not (tmp_path / "results").exists()
    done = nsl(capsys, monkeypatch, *words)
    assert done.code == 0
    assert "table4/smoke/cnn-0: error" in done.out


def test_bars_show_training_and_tests_and_are_removed_at_their_end():
    with Progress(*TrainingBar.columns(), disable=True) as bar:
        queue_bar = QueueBar(bar)
        queue_bar.training("finetune")({"kind": "step", "step": 2, "total": 3, "loss": 1.0})
        (task,) = bar.tasks
        assert (task.description, task.completed, task.total) == ("finetune", 2, 3)
        for done in (4, 8):
            queue_bar.tests("finetune 1shot", done, 8)
            (task,) = bar.tasks
            assert (task.description, task.completed, task.total) == ("finetune 1shot", done, 8)
        queue_bar.training("nearest")
        assert [task.description for task in bar.tasks] == ["nearest"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("table4", "--budget", "longer"), "expected a budget among smoke, short, long, paper"),
        (("table3", "--budget", "long"), "with budget 'long' (table4, table6), got table3"),
        (("table4", "--rows", "cnm"), "expected a row among cnn, cnn-plus"),
        (("table4", "--seeds", "0"), "--seeds"),
        (("tabel4",), "expected a table among table4, table4-cifar100"),
        (("run",), "TABLE"),
        (("list", "--budget", "longer"), "expected a budget among smoke, short, long, paper"),
    ],
)
def test_bad_input(words, message, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    ended = nsl(capsys, monkeypatch, "reproduce", *words)
    assert message in one_line(ended)
    assert list(tmp_path.iterdir()) == []


class TestReport:
    @pytest.fixture
    def files(self, tmp_path):
        """A result, and the options that keep the command away from the clone's own files."""
        keep_error(tmp_path / "results", "cnn", 0, 0.3)
        keep_error(tmp_path / "results", "static-diagonal", 0, 0.2)
        (tmp_path / "README.md").write_text(f"# Project\n\n{BEGIN}\n\n{END}\n")
        return {
            "--results": tmp_path / "results",
            "--out": tmp_path / "report.md",
            "--page": tmp_path / "page.md",
            "--readme": tmp_path / "README.md",
        }

    @pytest.mark.parametrize("name", ["--out", "--page", "--readme"])
    def test_check_covers_all_three_files(self, name, files, capsys, monkeypatch):
        options = [word for pair in files.items() for word in pair]
        check = ("reproduce", "report", "--check", *options)
        error = one_line(nsl(capsys, monkeypatch, *check))
        assert "report.md: expected the text that the JSON files give" in error
        assert nsl(capsys, monkeypatch, "reproduce", "report", *options).code == 0
        assert nsl(capsys, monkeypatch, *check).code == 0
        file = files[name]
        file.write_text(file.read_text().replace("20.00", "10.00"))
        error = one_line(nsl(capsys, monkeypatch, *check))
        assert re.search(rf"{file.name}: expected the text .* from line \d+ on", error)
        assert "10.00" in file.read_text(), "a check does not write"

    def test_no_results_are_one_line(self, tmp_path, capsys, monkeypatch):
        words = ("reproduce", "report", "--results", tmp_path, "--out", tmp_path / "r.md")
        error = one_line(nsl(capsys, monkeypatch, *words))
        assert "expected results of the short budget, got none" in error
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("words", [("--budget", "smoke"), ("--page", "p.md")])
    def test_the_files_of_the_clone_show_the_short_budget(self, words, capsys, monkeypatch):
        error = one_line(nsl(capsys, monkeypatch, "reproduce", "report", *words))
        assert "expected --out" in error


class TestExperimentsOfTheClone:
    def test_without_the_repository(self, capsys, monkeypatch, tmp_path):
        library = tmp_path / "site" / "a" / "neural_similarity" / "__init__.py"
        monkeypatch.setattr("neural_similarity.__file__", str(library))
        (tmp_path / "experiments").mkdir()
        (tmp_path / "experiments" / "reproduce.py").write_text("raise SystemExit('the wrong one')")
        monkeypatch.chdir(tmp_path)
        error = one_line(nsl(capsys, monkeypatch, "reproduce", "list"))
        assert "expected the library to be in a clone of the repository" in error
        assert nsl(capsys, monkeypatch, "reproduce", "--help").code == 0

    def test_a_folder_above_an_installed_library_is_no_clone(self, capsys, monkeypatch, tmp_path):
        """As after pip install --target libs: the folder above is where the command is run."""
        library = tmp_path / "libs" / "neural_similarity" / "__init__.py"
        monkeypatch.setattr("neural_similarity.__file__", str(library))
        (tmp_path / "experiments").mkdir()
        (tmp_path / "experiments" / "reproduce.py").write_text("raise SystemExit('the wrong one')")
        error = one_line(nsl(capsys, monkeypatch, "reproduce", "list"))
        assert (
            f"expected the library to be in a clone of the repository, got none in {tmp_path}"
            in error
        )

    def test_the_path_stays_as_it_was(self, monkeypatch):
        others = [entry for entry in sys.path if Path(entry).resolve() != ROOT]
        monkeypatch.setattr(sys, "path", list(others))
        for name in [name for name in sys.modules if name.partition(".")[0] == "experiments"]:
            monkeypatch.delitem(sys.modules, name)
        finders = list(sys.meta_path)
        assert Path(load_experiments().__file__) == ROOT / "experiments" / "reproduce.py"
        assert (sys.path, sys.meta_path) == (others, finders)
        assert clone_folder() == ROOT

    def test_another_module_of_that_name_is_not_used(self, monkeypatch, tmp_path):
        other = ModuleType("experiments")
        other.__path__ = [str(tmp_path)]
        monkeypatch.setitem(sys.modules, "experiments", other)
        with pytest.raises(ns.RunError, match=r"got another module with that name .*process"):
            load_experiments()
