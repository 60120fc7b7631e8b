"""Trials, which belong to no table: stored from a run, shown in the report."""

import json
from dataclasses import replace

import pytest
from support.fewshot_runs import SMALL

from experiments.records import read_record, write_record
from experiments.report.trials import trials_text
from experiments.trials import read_trials, store_trial
from neural_similarity.errors import RunError
from neural_similarity.fewshot import Trial, train_method
from neural_similarity.train import Run, TrainConfig, train


def test_a_run_is_kept_and_shown_beside_another(tmp_path):
    results = tmp_path / "results"
    base = train_method(replace(SMALL, method="finetune", steps=2), tmp_path / "base")
    base.evaluate([Trial(1, episodes=4), Trial(5, episodes=4)])
    tuned = replace(base.config, backbone=str(base.folder), steps=None, epochs=0, seed=7)
    tuned = replace(tuned, method_options={"epochs": 1, "lr": 0.5})
    again = train_method(tuned, tmp_path / "again")
    (one, *_) = again.evaluate([Trial(1, episodes=3)])

    store_trial(base.folder, "base", None, results)
    file = store_trial(again.folder, "again", "base", results)
    with pytest.raises(FileExistsError):
        store_trial(again.folder, "again", None, results)
    assert str(tmp_path) not in file.read_text()
    assert json.loads(file.read_text())["tests"][0]["accuracies"] == one["accuracies"]

    text = "\n\n".join(trials_text(read_trials(results)))
    theirs = json.loads((results / "trials" / "base.json").read_text())["tests"][0]["accuracies"]
    mean = 100 * sum(a - b for a, b in zip(one["accuracies"], theirs[:3], strict=True)) / 3
    assert f"| 1 shot {mean:+.2f} ±".replace("-", "−") in text
    assert "vs. `base` |" in text
    assert "--backbone runs/base" in text
    assert "--set method_options.lr=0.5" in text
    assert "after 2 steps |" in text


def test_a_run_for_classification_is_kept_as_well(tmp_path):
    results = tmp_path / "results"
    plain = TrainConfig(
        model="cnn9", options={"width": 2, "hidden": 4}, epochs=2, batch_size=512, validation=0.2,
        seed=100, threads=1,
    )  # fmt: skip
    train(plain, tmp_path / "plain")
    train(replace(plain, similarity="dynamic", hidden=2, lr=0.01), tmp_path / "dynamic")

    for name, beside in (("plain", None), ("dynamic", "plain")):
        store_trial(tmp_path / name, name, beside, results)

    files = [results / "trials" / f"{name}.json" for name in ("plain", "dynamic")]
    (first, base), (early, other) = (
        json.loads(file.read_text())["metrics"]["eval"]["error"] for file in files
    )
    text = "\n\n".join(trials_text(read_trials(results)))
    assert f"| {100 * first:.1f}, {100 * base:.1f} | – |" in text
    change = f"{100 * (other - base):+.2f}".replace("-", "−")
    assert f"| {100 * early:.1f}, {100 * other:.1f} | {change} vs. `plain` |" in text
    assert "--similarity dynamic --set hidden=2 --epochs 2" in text
    assert "validation classes" not in text


def test_a_trial_names_the_code_that_ran_it(tmp_path, monkeypatch):
    results, folder = tmp_path / "results", tmp_path / "run"

    def by(commit):
        monkeypatch.setattr("neural_similarity.train.runs.environment.code_version", lambda: commit)

    by("first")
    run = train_method(replace(SMALL, method="proto", steps=1), folder)
    run.evaluate([Trial(1, episodes=3)])
    monkeypatch.setattr("experiments.trials.commit", lambda: "later")
    record = read_record(store_trial(folder, "one", None, results))
    assert (record["commit"], record["commits"], record["kept_by"]) == ("first", ["first"], "later")
    assert "commit" not in "\n".join(trials_text(read_trials(results)))

    by("second")
    run.evaluate([Trial(5, episodes=3)])
    record = read_record(store_trial(folder, "two", "one", results))
    assert (record["commit"], record["commits"]) == ("second", ["first", "second"])
    text = " ".join(" ".join(trials_text(read_trials(results))).split())
    assert (
        "`two` was started by one version of the code and continued by another: `first`, `second`."
        in text
    )
    assert "`one` was" not in text

    old = {name: value for name, value in record.items() if name not in ("commit", "commits")}
    write_record(results / "trials" / "old.json", {**old, "trial": "old"})
    text = " ".join(" ".join(trials_text(read_trials(results))).split())
    assert "The files of `old` name the commit that stored the result; the run may have" in text


def test_a_test_names_the_code_of_its_start(tmp_path, monkeypatch):
    run = train_method(replace(SMALL, method="proto", steps=1), tmp_path / "run")
    commits = iter(["at the start", "at the end"])
    monkeypatch.setattr(
        "neural_similarity.train.runs.environment.code_version", lambda: next(commits)
    )

    def on_progress(name, done, total):
        assert next(commits) == "at the end", "it was not asked before the first episode"

    (result,) = run.evaluate([Trial(1, episodes=1)], callback=on_progress)
    assert result["environment"]["commit"] == "at the start"


def test_a_run_that_was_never_evaluated_is_not_kept(tmp_path):
    Run(tmp_path / "run", TrainConfig()).create()
    with pytest.raises(RunError, match="expected a run that was started"):
        store_trial(tmp_path / "run", "run", None, tmp_path / "results")


def test_without_trials_nothing_is_said(tmp_path):
    assert list(trials_text(read_trials(tmp_path))) == []
