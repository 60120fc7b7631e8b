"""Trials that no table has: kept from a run, shown in the report."""

import json
from dataclasses import replace

import pytest
from fewshot_runs import SMALL

from experiments.trials import keep, render_trials
from neural_similarity.fewshot import Trial, train_method


def test_a_run_is_kept_and_shown_beside_another(tmp_path):
    results = tmp_path / "results"
    base = train_method(replace(SMALL, method="finetune", steps=2), tmp_path / "base")
    base.evaluate([Trial(1, episodes=4), Trial(5, episodes=4)])
    tuned = replace(base.config, backbone=str(base.folder), steps=None, epochs=0, seed=7)
    tuned = replace(tuned, method_options={"epochs": 1, "lr": 0.5})
    again = train_method(tuned, tmp_path / "again")
    (one, *_) = again.evaluate([Trial(1, episodes=3)])

    keep(base.folder, "base", None, results)
    file = keep(again.folder, "again", "base", results)
    with pytest.raises(FileExistsError):
        keep(again.folder, "again", None, results)
    assert str(tmp_path) not in file.read_text()
    assert json.loads(file.read_text())["tests"][0]["accuracies"] == one["accuracies"]

    text = "\n\n".join(render_trials(results))
    theirs = json.loads((results / "trials" / "base.json").read_text())["tests"][0]["accuracies"]
    mean = 100 * sum(a - b for a, b in zip(one["accuracies"], theirs[:3], strict=True)) / 3
    assert f"| 1 shot {mean:+.2f} ±".replace("-", "−") in text
    assert "to `base` |" in text
    assert "--backbone runs/base" in text
    assert "--set method_options.lr=0.5" in text
    assert "after 2 steps |" in text


def test_without_trials_nothing_is_said(tmp_path):
    assert list(render_trials(tmp_path)) == []
