"""The queue of the paper's tables: every row runs, nothing is edited, nothing is lost."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from command import nsl, one_line
from killing import Killed, killed_at

from experiments.records import read_record, record_file, write_record
from experiments.rows import BUDGETS, OneStep
from experiments.tables import TABLES, table
from experiments.work import Queue, _claimed, jobs_of
from neural_similarity.train.build import build_model

# Rows of the other two are the same at the smoke budget.
DIFFERENT = [name for name in TABLES if name not in ("table4-cifar100", "table6-mini")]
CLASSES = {"cifar10": 10, "cifar100": 100, "imagenet": 1000, "digits": 10}


def parameters(row, budget):
    config = row.config(budget)
    sides = {"imagenet": 224}
    if isinstance(config, OneStep):
        config = config.config
    model = build_model(config, CLASSES[config.data], 3, sides.get(config.data, 32))
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("name", DIFFERENT)
def test_every_row_runs(name, tmp_path):
    said = []
    queue = Queue(tmp_path / "results", tmp_path / "work", tell=said.append)
    jobs = [job for job in jobs_of([table(name)], "smoke", 1) if job.row.kept_in == name]
    queue.run(jobs)
    assert queue.missing(jobs) == []
    assert len(said) == 2 * len(jobs)
    for job in jobs:
        record = read_record(record_file(queue.results, job.row, "smoke", 0))
        assert (record["row"], record["seed"], record["budget"]) == (job.row.name, 0, "smoke")
        assert record["parameters"] > 0
        assert record["config"]["seed"] == 0
        assert str(tmp_path) not in json.dumps(record)
        if "diverged" in record:
            assert job.row.name == "cnn-predictor-bare"
        elif name == "table6":
            assert [test["n_shot"] for test in record["tests"]] == [1, 5]
            assert all(len(test["accuracies"]) == 4 for test in record["tests"])
        elif name != "table5":
            assert record["error"] == pytest.approx(record["metrics"]["eval"]["error"][-1], 1e-4)
    files = {file: file.read_bytes() for file in queue.results.rglob("*.json")}
    queue.run(jobs)
    assert {file: file.read_bytes() for file in queue.results.rglob("*.json")} == files


def test_a_killed_run_goes_on(tmp_path):
    jobs = jobs_of([table("table4")], "smoke", 1, ["cnn"])
    whole = Queue(tmp_path / "whole", tmp_path / "work1", tell=lambda line: None)
    whole.run(jobs)
    halves = Queue(tmp_path / "halves", tmp_path / "work2", tell=lambda line: None)
    with pytest.raises(Killed):
        replace(halves, watch=lambda name: killed_at(2)).run(jobs)
    assert halves.missing(jobs) == jobs
    halves.run(jobs)
    first, second = (
        read_record(record_file(queue.results, jobs[0].row, "smoke", 0))
        for queue in (whole, halves)
    )
    assert first["error"] == second["error"]
    assert first["metrics"]["train"]["loss"] == second["metrics"]["train"]["loss"]


def test_a_result_is_never_replaced(tmp_path):
    file = tmp_path / "a" / "b.json"
    write_record(file, {"error": 0.5})
    with pytest.raises(FileExistsError):
        write_record(file, {"error": 0.1})
    assert read_record(file) == {"error": 0.5}
    assert list(file.parent.iterdir()) == [file]


def test_processes_share_a_queue(tmp_path):
    queue = Queue(tmp_path / "results", tmp_path / "work", tell=lambda line: None)
    (job,) = jobs_of([table("table4")], "smoke", 1, ["cnn"])
    with _claimed(queue.work / f"{job.name}.lock") as mine:
        assert mine
        assert not queue._try(job)
    assert queue._try(job)
    assert not queue._try(job), "it is done"


def test_what_a_row_begins_with_comes_first_and_once():
    jobs = jobs_of([table("table6")], "smoke", 2, ["meta-static", "static"])
    assert [(job.row.name, job.seed) for job in jobs] == [
        (name, seed) for seed in (0, 1) for name in ("finetune", "static", "meta-static")
    ]
    shared = jobs_of([table("table4"), table("table2")], "smoke", 1)
    assert [job.name for job in shared].count("table4/smoke/cnn-0") == 1


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("name", TABLES)
def test_configurations_are_frozen_and_differ(name, budget):
    configs = [row.config(budget, 3) for row in table(name).rows]
    assert all(config.seed == 3 for config in configs)
    for number, config in enumerate(configs):
        assert config not in configs[:number]
    assert set(table(name).paper) | {table(name).baseline} <= {r.name for r in table(name).rows}


@pytest.mark.parametrize("budget", ["short", "paper"])
@pytest.mark.parametrize("name", ["table4", "table4-cifar100"])
def test_the_larger_baseline_has_more_parameters_than_every_row(name, budget):
    counts = {row.name: parameters(row, budget) for row in table(name).rows}
    plus = counts.pop("cnn-plus")
    assert max(counts.values()) < plus < 1.05 * max(counts.values())


def test_imagenet_networks_have_the_papers_parameters():
    for name, millions in table("table5").paper.items():
        assert round(parameters(table("table5").row(name), "paper") / 1e6, 2) == millions


def test_the_widened_network_has_as_many_parameters_as_the_dynamic_one():
    import neural_similarity as ns

    for budget in BUDGETS:
        wide = table("table6").row("wide-parameters").config(budget)
        dynamic = table("table6").row("dynamic").config(budget)
        predictor = ns.SpherePredictor(hidden=dynamic.hidden)
        similarity = ns.DynamicSimilarity("diagonal", predictor)
        aim = features(ns.create_model("cnn4", 5, similarity=similarity, **dynamic.options))
        width = wide.options["width"]
        assert features(ns.create_model("cnn4", 5, width=width)) >= aim
        assert features(ns.create_model("cnn4", 5, width=width - 1)) < aim


def features(model):
    return sum(p.numel() for name, p in model.named_parameters() if "classifier" not in name)


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
    assert "1 runs, 1 of them" in done.out
    again = nsl(capsys, monkeypatch, "reproduce", "list", "--budget", "smoke", *results)
    assert "1 of 3" in again.out


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
