"""The queue of the paper's tables: every row runs, nothing is edited, nothing is lost."""

import json
import shutil
from dataclasses import replace

import pytest
import torch
from support.killing import Killed, killed_at

from experiments.queue import Queue, jobs_of
from experiments.queue.run_record import run_record
from experiments.records import read_record, record_file, write_record
from experiments.tables import TABLES
from experiments.tables import find_table as table
from neural_similarity.errors import DivergedError, RunError
from neural_similarity.train import Run, locked

# The rows of the other two are the same at the smoke budget, but for one that is added below.
DIFFERENT = [name for name in TABLES if name not in ("table4-cifar100", "table6-mini")]


@pytest.mark.parametrize("name", DIFFERENT)
def test_every_row_runs(name, tmp_path):
    lines = []
    queue = Queue(tmp_path / "results", tmp_path / "work", log=lines.append)
    jobs = [job for job in jobs_of([table(name)], "smoke", 1) if job.row.kept_in == name]
    if name == "table6":
        jobs += jobs_of([table("table6-mini")], "smoke", 1, ["dynamic-cnn9"])
    queue.run(jobs)
    assert queue.missing(jobs) == []
    assert len(lines) == 2 * len(jobs)
    sizes = {}
    for job in jobs:
        record = read_record(record_file(queue.results, job.row, "smoke", 0))
        assert (record["row"], record["seed"], record["budget"]) == (job.row.name, 0, "smoke")
        assert record["parameters"] > 0
        sizes[job.row.name] = (record["parameters"], record.get("trained_parameters"))
        assert record["config"]["seed"] == 0
        assert str(tmp_path) not in json.dumps(record)
        if "diverged" in record:
            assert job.row.name == "cnn-predictor-bare"
        elif name == "table6":
            assert [test["n_shot"] for test in record["tests"]] == [1, 5]
            assert all(len(test["accuracies"]) == 4 for test in record["tests"])
        elif name != "table5":
            assert record["error"] == pytest.approx(record["metrics"]["eval"]["error"][-1], 1e-4)
    if name == "table6":  # what is tested: without the classifier of training classes
        backbone, trained = sizes["finetune"]
        assert sizes["proto"] == (backbone, backbone)
        assert sizes["ridge"] == (backbone + 3, backbone + 3)
        assert sizes["baseline-pp"][0] == backbone
        assert sizes["laplace"] == (trained, trained), "it uses that classifier"
        assert sizes["maml"][0] > backbone, "it has learned where a classifier starts"
        assert backbone < sizes["tadam"][0] < sizes["tadam"][1]
    files = {file: file.read_bytes() for file in queue.results.rglob("*.json")}
    queue.run(jobs)
    assert {file: file.read_bytes() for file in queue.results.rglob("*.json")} == files


def test_a_killed_run_continues(tmp_path, monkeypatch):
    jobs = jobs_of([table("table4")], "smoke", 1, ["cnn"])
    whole = Queue(tmp_path / "whole", tmp_path / "work1", log=lambda line: None)
    whole.run(jobs)
    halves = Queue(tmp_path / "halves", tmp_path / "work2", log=lambda line: None)
    with pytest.raises(Killed):
        replace(halves, callback=lambda name: killed_at(2)).run(jobs)
    assert halves.missing(jobs) == jobs
    monkeypatch.setattr("experiments.queue.worker.commit", lambda: "newer")
    halves.run(jobs)
    first, second = (
        read_record(record_file(queue.results, jobs[0].row, "smoke", 0))
        for queue in (whole, halves)
    )
    assert first["error"] == second["error"]
    assert first["metrics"]["train"]["loss"] == second["metrics"]["train"]["loss"]
    assert first["commits"] == [first["commit"]]
    assert second["commits"] == [first["commit"], "newer"], "both have worked on it"
    assert second["commit"] == "newer"


def test_a_run_started_by_unknown_code_says_so(tmp_path):
    queue = Queue(tmp_path / "results", tmp_path / "work", log=lambda line: None)
    (job,) = jobs_of([table("table4")], "smoke", 1, ["cnn"])
    (queue.work / job.name).mkdir(parents=True)
    queue.run([job])
    assert read_record(record_file(queue.results, job.row, "smoke", 0))["commits"][0] == "unknown"


def test_the_error_is_the_last_one_not_the_best(tmp_path, monkeypatch):
    over_time = [{"kind": "eval", "error": error, "seconds": 1.0} for error in (0.4, 0.2, 0.3)]
    monkeypatch.setattr("neural_similarity.train.Run.metrics", lambda run: over_time)
    queue = Queue(tmp_path / "results", tmp_path / "work", log=lambda line: None)
    (job,) = jobs_of([table("table4")], "smoke", 1, ["cnn"])
    queue.run([job])
    assert read_record(record_file(queue.results, job.row, "smoke", 0))["error"] == 0.3


def test_a_network_that_is_gone_is_trained_again(tmp_path):
    lines, progress = [], set()
    queue = Queue(
        tmp_path / "results", tmp_path / "work", log=lines.append,
        test_callback=lambda name, done, total: progress.add((name, total)),
    )  # fmt: skip
    finetune, nearest = jobs_of([table("table6")], "smoke", 1, ["nearest"])
    queue.run([finetune])
    file = record_file(queue.results, finetune.row, "smoke", 0)
    result = file.read_bytes()
    shutil.rmtree(queue.work)
    queue.run([finetune, nearest])
    assert file.read_bytes() == result
    assert [line.partition(",")[0] for line in lines[2:4]] == [
        "table6/smoke/finetune-0: training again; its result exists",
        "table6/smoke/nearest-0: started",
    ]
    assert queue.missing([nearest]) == []
    assert ("table6/smoke/nearest-0 5way-1shot-4-0-5query", 4) in progress


def test_a_network_that_diverges_when_trained_again_stops_the_queue(tmp_path, monkeypatch):
    queue = Queue(tmp_path / "results", tmp_path / "work", log=lambda line: None)
    finetune, nearest = jobs_of([table("table6")], "smoke", 1, ["nearest"])
    write_record(record_file(queue.results, finetune.row, "smoke", 0), {"tests": []})

    def diverge(*args, **kwargs):
        raise DivergedError("no number", step=2)

    monkeypatch.setattr("experiments.queue.worker.train_method", diverge)
    with pytest.raises(RunError, match=r"finetune-0: expected training to finish .* at step 2\."):
        queue.run([nearest])


def test_a_row_that_starts_from_a_diverged_network_has_diverged(tmp_path):
    queue = Queue(tmp_path / "results", tmp_path / "work", log=lambda line: None)
    _, nearest = jobs_of([table("table6")], "smoke", 1, ["nearest"])
    record = {"environment": {}, "data_copies": {}, "parameters": 5, "diverged": 7}
    write_record(record_file(queue.results, nearest.before.row, "smoke", 0), record)
    queue.run([nearest])
    record = read_record(record_file(queue.results, nearest.row, "smoke", 0))
    assert (record["diverged"], record["tests"], record["row"]) == (7, [], "nearest")
    assert record["config"]["backbone"] == "finetune"


def test_a_run_with_other_settings_is_set_aside(tmp_path):
    lines = []
    queue = Queue(tmp_path / "results", tmp_path / "work", log=lines.append)
    (job,) = jobs_of([table("table4")], "smoke", 1, ["cnn"])
    faster = replace(job, row=replace(job.row, change=lambda base: replace(base, lr=0.5)))
    for other in (faster, faster):
        with pytest.raises(Killed):
            replace(queue, callback=lambda name: killed_at(2)).run([other])
    assert len(lines) == 2, "the same settings continue"
    queue.run([job])
    assert lines[3] == (
        "table4/smoke/cnn-0: an earlier run has other settings; renamed to cnn-0.old-1"
    )
    record = read_record(record_file(queue.results, job.row, "smoke", 0))
    assert (record["config"]["lr"], record["commits"]) == (None, [record["commit"]])
    aside = queue.work / "table4" / "smoke" / "cnn-0.old-1"
    assert json.loads((aside / "config.json").read_text())["lr"] == 0.5
    assert aside.with_name("cnn-0.old-1.commits").is_file()


def test_networks_have_fingerprints(tmp_path):
    queue = Queue(tmp_path / "results", tmp_path / "work", log=lambda line: None)
    jobs = jobs_of([table("table6")], "smoke", 1, ["nearest", "proto"])
    queue.run(jobs)
    finetune, nearest, proto = (
        read_record(record_file(queue.results, job.row, "smoke", 0)) for job in jobs
    )
    assert nearest["began_with"] == finetune["network"]
    assert "began_with" not in proto
    assert proto["network"] != finetune["network"]


def test_taps_that_were_switched_off_are_counted(tmp_path, monkeypatch):
    queue = Queue(tmp_path / "results", tmp_path / "work", log=lambda line: None)
    (static, dynamic) = jobs_of([table("table2")], "smoke", 1, ["static-joint", "dynamic-joint"])
    queue.run([static, dynamic])
    for job in (static, dynamic):
        run = queue._run(job)
        model = run.load_model()
        masks = [p for name, p in model.named_parameters() if "shape" in name.rpartition(".")[2]]
        with torch.no_grad():
            masks[0][:4], masks[3][0] = 0.2, 0.89
        monkeypatch.setattr(Run, "load_model", lambda _, model=model: model)
        before = sum(int((mask <= 0.9).sum()) for mask in masks)
        assert run_record(run, run.config)["taps_off"] == [before, 81]
        assert before >= 5
        monkeypatch.undo()


def test_processes_share_a_queue(tmp_path):
    queue = Queue(tmp_path / "results", tmp_path / "work", log=lambda line: None)
    (job,) = jobs_of([table("table4")], "smoke", 1, ["cnn"])
    with locked(queue.work / f"{job.name}.lock") as mine:
        assert mine
        assert not queue._try(job)
        with locked(queue.work / f"{job.name}.lock") as also:
            assert not also
    assert queue._try(job)
    assert not queue._try(job), "it is done"


def test_what_a_row_starts_from_comes_first_and_once():
    jobs = jobs_of([table("table6")], "smoke", 2, ["meta-static", "static"])
    assert [(job.row.name, job.seed) for job in jobs] == [
        (name, seed) for seed in (0, 1) for name in ("finetune", "static", "meta-static")
    ]
    assert [job.before.row.name for job in jobs[1:3]] == ["finetune", "static"]
    shared = jobs_of([table("table4"), table("table2")], "smoke", 1)
    assert [job.name for job in shared].count("table4/smoke/cnn-0") == 1
