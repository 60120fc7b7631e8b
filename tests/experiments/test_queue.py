"""The queue of the paper's tables: every row runs, nothing is edited, nothing is lost."""

import errno
import json
import os
import re
import shutil
from dataclasses import replace

import pytest
import torch
from support.killing import Killed, killed_at

from experiments.queue.jobs import jobs_of
from experiments.queue.measurements import about_run
from experiments.queue.queue import Queue, _claimed
from experiments.records import as_columns, commit, read_record, record_file, write_record
from experiments.tables.registry import TABLES, table
from experiments.tables.row import BUDGETS, OneStep
from neural_similarity.errors import DivergedError, FileFormatError, RunError
from neural_similarity.train import Run
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


def test_a_killed_run_goes_on(tmp_path, monkeypatch):
    jobs = jobs_of([table("table4")], "smoke", 1, ["cnn"])
    whole = Queue(tmp_path / "whole", tmp_path / "work1", tell=lambda line: None)
    whole.run(jobs)
    halves = Queue(tmp_path / "halves", tmp_path / "work2", tell=lambda line: None)
    with pytest.raises(Killed):
        replace(halves, callback=lambda name: killed_at(2)).run(jobs)
    assert halves.missing(jobs) == jobs
    monkeypatch.setattr("experiments.work.commit", lambda: "newer")
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


def test_a_run_begun_by_unknown_code_says_so(tmp_path):
    queue = Queue(tmp_path / "results", tmp_path / "work", tell=lambda line: None)
    (job,) = jobs_of([table("table4")], "smoke", 1, ["cnn"])
    (queue.work / job.name).mkdir(parents=True)
    queue.run([job])
    assert read_record(record_file(queue.results, job.row, "smoke", 0))["commits"][0] == "unknown"


def test_the_error_is_the_last_one_not_the_best(tmp_path, monkeypatch):
    over_time = [{"kind": "eval", "error": error, "seconds": 1.0} for error in (0.4, 0.2, 0.3)]
    monkeypatch.setattr("neural_similarity.train.Run.metrics", lambda run: over_time)
    queue = Queue(tmp_path / "results", tmp_path / "work", tell=lambda line: None)
    (job,) = jobs_of([table("table4")], "smoke", 1, ["cnn"])
    queue.run([job])
    assert read_record(record_file(queue.results, job.row, "smoke", 0))["error"] == 0.3


def test_the_commit_is_that_of_the_start(monkeypatch):
    before = commit()
    monkeypatch.setattr("experiments.records.subprocess.run", lambda *_, **__: pytest.fail("again"))
    assert commit() == before


def test_the_commit_of_another_library_is_unknown(monkeypatch):
    monkeypatch.setattr("neural_similarity.__file__", "/elsewhere/neural_similarity/__init__.py")
    assert commit.__wrapped__() == "unknown"


def test_a_network_that_is_gone_is_trained_again(tmp_path):
    said, shown = [], set()
    queue = Queue(
        tmp_path / "results", tmp_path / "work", tell=said.append,
        tests=lambda name, done, total: shown.add((name, total)),
    )  # fmt: skip
    finetune, nearest = jobs_of([table("table6")], "smoke", 1, ["nearest"])
    queue.run([finetune])
    file = record_file(queue.results, finetune.row, "smoke", 0)
    result = file.read_bytes()
    shutil.rmtree(queue.work)
    queue.run([finetune, nearest])
    assert file.read_bytes() == result
    assert [line.partition(",")[0] for line in said[2:4]] == [
        "table6/smoke/finetune-0: trained again", "table6/smoke/nearest-0: begins"
    ]  # fmt: skip
    assert queue.missing([nearest]) == []
    assert ("table6/smoke/nearest-0 5way-1shot-4-0-5query", 4) in shown


def test_a_network_that_diverges_when_trained_again_stops_the_queue(tmp_path, monkeypatch):
    queue = Queue(tmp_path / "results", tmp_path / "work", tell=lambda line: None)
    finetune, nearest = jobs_of([table("table6")], "smoke", 1, ["nearest"])
    write_record(record_file(queue.results, finetune.row, "smoke", 0), {"tests": []})

    def diverge(*args, **kwargs):
        raise DivergedError("no number", step=2)

    monkeypatch.setattr("experiments.work.train_method", diverge)
    with pytest.raises(RunError, match=r"finetune-0: expected to come to its end .* at step 2\."):
        queue.run([nearest])


def test_what_begins_with_a_network_that_diverged_has_no_result_but_that(tmp_path):
    queue = Queue(tmp_path / "results", tmp_path / "work", tell=lambda line: None)
    _, nearest = jobs_of([table("table6")], "smoke", 1, ["nearest"])
    known = {"environment": {}, "data_copies": {}, "parameters": 5, "diverged": 7}
    write_record(record_file(queue.results, nearest.before.row, "smoke", 0), known)
    queue.run([nearest])
    record = read_record(record_file(queue.results, nearest.row, "smoke", 0))
    assert (record["diverged"], record["tests"], record["row"]) == (7, [], "nearest")
    assert record["config"]["backbone"] == "finetune"


def test_a_full_disk_leaves_nothing_behind(tmp_path, monkeypatch):
    def full(handle):
        raise OSError(errno.ENOSPC, "no room")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no room"):
        write_record(tmp_path / "a.json", {"error": 0.5})
    assert list(tmp_path.iterdir()) == []


def test_columns_of_a_kind_are_as_long():
    lines = [
        {"kind": "train", "step": 1, "loss": 0.1234567},
        {"kind": "eval", "step": 1},
        {"kind": "train", "step": 2, "lr": 0.5},
    ]
    assert as_columns(lines) == {
        "train": {"step": [1, 2], "loss": [0.12346, None], "lr": [None, 0.5]},
        "eval": {"step": [1]},
    }


@pytest.mark.parametrize("links", [True, False], ids=["with links", "without"])
def test_a_result_is_never_replaced(links, tmp_path, monkeypatch):
    def no_links(source, target):
        raise PermissionError(errno.EPERM, "no hard links here")

    if not links:
        monkeypatch.setattr(os, "link", no_links)
    file = tmp_path / "a" / "b.json"
    write_record(file, {"error": 0.5})
    with pytest.raises(FileExistsError, match=r"b\.json: expected no result yet, got one\."):
        write_record(file, {"error": 0.1})
    assert read_record(file) == {"error": 0.5}
    assert list(file.parent.iterdir()) == [file]


@pytest.mark.parametrize("text", ["null", "[1]", '{"error": 0.', ""])
def test_a_damaged_result_is_not_taken_for_a_missing_one(text, tmp_path):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(FileFormatError, match=r"a\.json: expected .* Move it away"):
        read_record(tmp_path / "a.json")


def test_what_was_begun_with_other_settings_is_set_aside(tmp_path):
    said = []
    queue = Queue(tmp_path / "results", tmp_path / "work", tell=said.append)
    (job,) = jobs_of([table("table4")], "smoke", 1, ["cnn"])
    faster = replace(job, row=replace(job.row, change=lambda base: replace(base, lr=0.5)))
    for other in (faster, faster):
        with pytest.raises(Killed):
            replace(queue, callback=lambda name: killed_at(2)).run([other])
    assert len(said) == 2, "the same settings are gone on with"
    queue.run([job])
    assert said[3] == "table4/smoke/cnn-0: begun with other settings; set aside as cnn-0.old-1"
    record = read_record(record_file(queue.results, job.row, "smoke", 0))
    assert (record["config"]["lr"], record["commits"]) == (None, [record["commit"]])
    aside = queue.work / "table4" / "smoke" / "cnn-0.old-1"
    assert json.loads((aside / "config.json").read_text())["lr"] == 0.5
    assert aside.with_name("cnn-0.old-1.commits").is_file()


def test_networks_are_known_again(tmp_path):
    queue = Queue(tmp_path / "results", tmp_path / "work", tell=lambda line: None)
    jobs = jobs_of([table("table6")], "smoke", 1, ["nearest", "proto"])
    queue.run(jobs)
    finetune, nearest, proto = (
        read_record(record_file(queue.results, job.row, "smoke", 0)) for job in jobs
    )
    assert nearest["began_with"] == finetune["network"]
    assert "began_with" not in proto
    assert proto["network"] != finetune["network"]


def test_taps_that_were_switched_off_are_counted(tmp_path, monkeypatch):
    queue = Queue(tmp_path / "results", tmp_path / "work", tell=lambda line: None)
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
        assert about_run(run, run.config)["taps_off"] == [before, 81]
        assert before >= 5
        monkeypatch.undo()


def test_processes_share_a_queue(tmp_path):
    queue = Queue(tmp_path / "results", tmp_path / "work", tell=lambda line: None)
    (job,) = jobs_of([table("table4")], "smoke", 1, ["cnn"])
    with _claimed(queue.work / f"{job.name}.lock") as mine:
        assert mine
        assert not queue._try(job)
        with _claimed(queue.work / f"{job.name}.lock") as also:
            assert not also
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
def test_configurations_differ(name, budget):
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
    assert counts.pop("cnn-plus-lower-rate") == plus
    assert max(counts.values()) < plus < 1.05 * max(counts.values())


@pytest.mark.parametrize("budget", ["short", "paper"])
@pytest.mark.parametrize("name", ["table6", "table6-mini"])
def test_images_and_episodes_are_as_many(name, budget):
    """Rows that look through gradient steps, or go on with another's, say what they have."""
    seen = {}
    base = {"train": 64 * 600, "train+val": 80 * 600}
    for row in table(name).rows:
        config = row.config(budget)
        if config.epochs and config.steps is None and row.begins_with is None:
            images = base[config.base]
            if config.build_method().trains_on == "episodes":
                way, shot, query = config.training_episode()
                images = config.epoch_steps * config.tasks * way * (shot + query)
            seen[row.name] = images * config.epochs
    assert len(seen) > 2
    assert len(set(seen.values())) == 1, seen
    if budget == "short":
        assert f"({seen['finetune']:,.0f} images: " in table(name).budgets["short"]
        assert f"{seen['finetune'] / 128:,.0f} steps of 128" in table(name).budgets["short"]
        assert f"{seen['proto'] / 400:,.0f} " in table(name).budgets["short"]


@pytest.mark.parametrize("name", ["table6", "table6-mini"])
def test_rows_have_the_tasks_and_statistics_that_they_say(name):
    told = {}
    for row in table(name).rows:
        config = row.config("short")
        assert ("Transductive" in row.departs) == (config.batch_norm == "batch")
        if said := re.search(r"budget (\d+) tasks|(\d+) tasks at the short budget", row.departs):
            told[row.name] = int(said[1] or said[2])
        assert told.get(row.name) == (config.steps and config.steps * config.tasks)
    assert {"maml", "meta-static"} <= told.keys()
    notes = " ".join(table(name).notes)
    assert all(f"{tasks}" in notes for tasks in told.values())
    static = table(name).row("static").config("short")
    usual = table(name).row("finetune").config("short").episodes
    assert f"first {static.episodes} of the {usual} episodes" in notes
    assert f"on {static.episodes} episodes" in table(name).row("static").departs


def test_episodes_on_top_of_a_trained_network_are_as_many_as_said():
    row = table("table6").row("proto-pretrained")
    config = row.config("short")
    assert f"here {config.epochs * config.epoch_steps:.0f} episodes come after" in row.departs


def test_imagenet_networks_have_the_papers_parameters():
    for name, millions in table("table5").sizes.items():
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
