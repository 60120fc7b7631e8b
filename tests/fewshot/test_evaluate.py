"""Tests of few-shot methods: what is counted, what is recorded, what survives an interruption."""

import json
import shutil
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch
from support.fewshot_runs import SMALL, torchrun
from torch import nn

import neural_similarity as ns
from neural_similarity.data import Episodes
from neural_similarity.fewshot import (
    FewShotNetwork,
    Result,
    Trial,
    evaluate_method,
    query_labels,
    task,
    train_method,
)
from neural_similarity.fewshot.methods.metric.proto import Proto
from neural_similarity.fewshot.methods.similarity.static import Static
from neural_similarity.fewshot.training_data import load_split


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return train_method(SMALL, tmp_path_factory.mktemp("runs") / "run")


@pytest.fixture
def run(trained, tmp_path):
    """A copy of the run without results."""
    shutil.copytree(trained.folder, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "results", ignore_errors=True)
    return replace(trained, folder=tmp_path / "run")


def result_of(accuracies):
    nothing = dict.fromkeys(Result.__dataclass_fields__, 0)
    return Result(**{**nothing, "accuracies": tuple(accuracies), "batch_norm": "running"})


def test_the_interval_is_that_of_a_mean():
    result = result_of([0.5, 0.7, 0.9, 0.3])
    # Deviations from 0.6: squares 0.01 + 0.01 + 0.09 + 0.09 = 0.2, over three, by hand.
    assert result.mean == pytest.approx(0.6)
    assert result.interval == pytest.approx(1.96 * (0.2 / 3) ** 0.5 / 2)
    assert result_of([0.5]).interval == float("inf")


@pytest.mark.parametrize("policy", ["running", "batch"])
def test_accuracies_are_those_of_episodes_looked_at_one_by_one(trained, policy):
    config = replace(trained.config, batch_norm=policy)
    method, network = config.build_method(), trained.load_network()
    dataset = load_split(config, "test")
    mean, std = trained.normalisation()
    episodes = Episodes(dataset.labels, 3, 2, 4, 5, 9)
    before = {k: v.clone() for k, v in network.state_dict().items()}
    result = evaluate_method(method, network.train(), dataset, episodes, mean=mean, std=std)
    assert network.training
    assert all(torch.equal(v, before[k]) for k, v in network.state_dict().items())
    network.eval()
    images = (dataset.images / 255 - mean[0]) / std[0]
    for number, accuracy in enumerate(result.accuracies):
        support, query, _ = episodes.batch(number, number + 1)
        with torch.no_grad():
            scores = method.scores(network, images[support], images[query].flatten(1, 2))
        right = (scores.argmax(-1)[0] == query_labels(3, 4)).double().mean().item()
        assert accuracy == pytest.approx(right)
    assert result.inference == ("inductive" if policy == "running" else "transductive")
    assert len(set(result.accuracies)) > 1


def test_frozen_submodules_stay_frozen(trained):
    network = trained.load_network().train()
    norm = next(m for m in network.modules() if isinstance(m, nn.BatchNorm2d)).eval()
    modes = [module.training for module in network.modules()]
    assert set(modes) == {True, False}
    dataset = load_split(trained.config, "test")
    mean, std = trained.normalisation()
    method = trained.config.build_method()
    seen = []
    norm.register_forward_hook(lambda *_: seen.append(network.training))
    episodes = Episodes(dataset.labels, 3, 2, 4, 5, 3)
    evaluate_method(method, network, dataset, episodes, mean=mean, std=std)
    assert seen
    assert not any(seen), "evaluation was in training mode"
    assert [module.training for module in network.modules()] == modes
    FewShotNetwork(network.backbone, (1, 8, 8))  # runs an image through it
    assert [module.training for module in network.modules()] == modes
    with pytest.raises(ns.ShapeError):
        FewShotNetwork(network.backbone, (2, 8, 8))
    assert [module.training for module in network.modules()] == modes


def test_what_a_kill_left_after_the_result_is_removed(run):
    run.evaluate([Trial(1)])
    results = run.folder / "results"
    (file,) = results.iterdir()
    file.with_suffix(".partial.jsonl").write_text("{}\n")
    (results / ".nsl-scratch-killed").mkdir()
    run.evaluate([Trial(1)])
    assert list(results.iterdir()) == [file]


def test_a_record_says_everything(run):
    (record,) = run.evaluate([Trial(1)])
    file = run.folder / "results" / "3way-1shot-30-0-4query.json"
    assert json.loads(file.read_text()) == record
    for key in ("mean", "interval", "inference", "batch_norm", "base", "augment", "adapted", "seed",
                "episode_seed", "fingerprint", "data_copy", "base_copies", "weights", "seconds",
                "weights_step", "config", "environment", "method_options", "model"):  # fmt: skip
        assert key in record, key
    labels = load_split(run.config, "test").labels
    assert record["fingerprint"] == Episodes(labels, 3, 1, 4, 0, 30).fingerprint()
    assert (record["weights"], record["base"], record["adapted"]) == ("best", "train", 0)
    assert len(record["accuracies"]) == record["episodes"] == 30
    assert record["mean"] == pytest.approx(sum(record["accuracies"]) / 30)
    assert run.results() == [record]
    older = {key: value for key, value in record.items() if key != "episodes_per_second"}
    file.write_text(json.dumps(older))
    assert run.results() == [record]


def test_results_are_not_made_twice_nor_overwritten(run):
    (record,) = run.evaluate([Trial(2)])
    file = run.folder / "results" / "3way-2shot-30-0-4query.json"
    file.write_text(json.dumps({**record, "mean": 0.123}))
    assert run.evaluate([Trial(2)])[0]["mean"] == 0.123
    file.write_text(json.dumps({**record, "weights_step": 1}))
    with pytest.raises(ns.RunError, match=r"got one for different ones.*Test again with --force"):
        run.evaluate([Trial(2)])
    (again,) = run.evaluate([Trial(2)], force=True)
    assert again["accuracies"] == record["accuracies"]
    names = {"last": "3way-2shot-30-0-4query-last", "batch": "3way-2shot-30-0-4query-batch"}
    run.evaluate([Trial(2, which="last"), Trial(2, batch_norm="batch")])
    for name in names.values():
        assert (run.folder / "results" / f"{name}.json").is_file()


def test_a_stopped_test_goes_on(trained, tmp_path, monkeypatch):
    monkeypatch.setattr(Static, "episodes_at_a_time", 4)
    options = {"epochs": 2, "batch_size": None}
    config = replace(SMALL, method="static", method_options=options, episodes=12, steps=2)
    run = train_method(config, str(tmp_path / "run"))
    (whole,) = run.evaluate([Trial(1)])
    file = run.folder / "results" / "3way-1shot-12-0-4query.json"
    file.unlink()

    def stop(name, done, total):
        if done >= 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run.evaluate([Trial(1)], callback=stop)
    partial = file.with_suffix(".partial.jsonl")
    assert len(partial.read_text().splitlines()) == 3  # what it is about, and twice four episodes
    with partial.open("a") as torn:
        torn.write('{"accur')
    seen = []
    (resumed,) = run.evaluate([Trial(1)], callback=lambda name, done, total: seen.append(done))
    assert seen == [12]
    assert resumed["accuracies"] == whole["accuracies"]
    assert not partial.exists()


def test_a_test_that_two_processes_ran_counts_each_episode_once(run):
    (whole,) = run.evaluate([Trial(1, episodes=12)])
    file = run.folder / "results" / "3way-1shot-12-0-4query.json"
    file.unlink()
    partial = file.with_suffix(".partial.jsonl")

    def stop(name, done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run.evaluate([Trial(1, episodes=12)], callback=stop)
    about, line = partial.read_text().splitlines(keepends=True)
    accuracies = json.loads(line)["accuracies"]
    lines = [
        json.dumps({"first": first, "accuracies": accuracies[first : first + 4], "seconds": 1.0})
        for first in (0, 0, 8)  # both began; one was killed before it wrote its second line
    ]
    partial.write_text("\n".join([about.strip(), *lines]) + "\n")
    seen = []
    (resumed,) = run.evaluate([Trial(1, episodes=12)], callback=lambda *args: seen.append(args[1]))
    assert resumed["accuracies"] == whole["accuracies"]
    assert seen == [12]


def test_classes_that_a_backbone_was_trained_on_are_refused(tmp_path):
    first = train_method(replace(SMALL, method="finetune", steps=1), tmp_path / "first")
    config = replace(SMALL, data="swapped", backbone=str(first.folder), epochs=0.0)
    second = train_method(config, tmp_path / "second")
    assert second.trained_classes()[-1] == "train 5"
    with pytest.raises(ns.DataError, match=r"not trained on, got 'train 0', 'train 1'"):
        second.evaluate([Trial(1)])
    third = train_method(replace(config, backbone=str(second.folder)), tmp_path / "third")
    with pytest.raises(ns.DataError, match=r"not trained on, got 'train 0', 'train 1'"):
        third.evaluate([Trial(1)])


def test_classes_that_were_trained_on_are_refused(tmp_path):
    run = train_method(replace(SMALL, data="overlapping", steps=1), tmp_path / "run")
    with pytest.raises(ns.DataError, match=r"not trained on, got 'train 0', 'train 1'.* in both"):
        run.evaluate([Trial(1)])


SHARED = """
import sys
from pathlib import Path
from support import fewshot_runs
from neural_similarity.fewshot import FewShotRun, Trial
from neural_similarity.train.distributed import join_world
with join_world("cpu") as world:
    run = FewShotRun.open(sys.argv[1])
    run.evaluate([Trial(2, episodes=310), Trial(1, episodes=10, batch_norm="batch")], world)
"""


def test_two_processes_find_what_one_finds(run, tmp_path):
    tests = [Trial(2, episodes=310), Trial(1, episodes=10, batch_norm="batch")]
    alone = run.evaluate(tests)
    script = tmp_path / "shared.py"
    script.write_text(SHARED)
    shutil.rmtree(run.folder / "results")
    done = torchrun(script, run.folder)
    assert done.returncode == 0, done.stderr
    together = {r["inference"]: r for r in run.results()}
    for record in alone:
        other = together[record["inference"]]
        assert other["accuracies"] == record["accuracies"]
        assert other["mean"] == record["mean"]
        assert other["environment"]["processes"] == 2


@dataclass(frozen=True)
class Peeking(Proto):
    """It shifts queries by their own mean, which takes all of them, and does not say so."""

    name: ClassVar[str] = "peeking"

    def feature_scores(self, network, support, query):
        return super().feature_scores(network, support, query - query.mean(1, keepdim=True))


@dataclass(frozen=True)
class Guessing(Proto):
    """It knows at which places the queries of a class are."""

    name: ClassVar[str] = "guessing"

    def feature_scores(self, network, support, query):
        places = torch.arange(query.shape[1]) * support.shape[1] // query.shape[1]
        return torch.eye(support.shape[1])[places].expand(len(query), -1, -1)


@dataclass(frozen=True)
class Honest(Peeking):
    name: ClassVar[str] = "honest"
    transductive: ClassVar[bool] = True


@pytest.mark.parametrize("count", [3, 9])  # as many episodes as are checked at most, and more
def test_an_inductive_method_cannot_peek(trained, count):
    network, dataset = trained.load_network(), load_split(trained.config, "test")
    mean, std = trained.normalisation()
    episodes = Episodes(dataset.labels, 3, 2, 4, 5, count)
    for method in (Peeking(), Guessing()):
        with pytest.raises(
            ns.RunError, match=f"{method.name}: expected the same scores for a query"
        ):
            evaluate_method(method, network, dataset, episodes, mean=mean, std=std)
    honest = evaluate_method(Honest(), network, dataset, episodes, mean=mean, std=std)
    assert honest.inference == "transductive"
    allowed = evaluate_method(Peeking("batch"), network, dataset, episodes, mean=mean, std=std)
    assert allowed.inference == "transductive"


@dataclass(frozen=True)
class Undefined(Honest):
    """Its scores are numbers for some episodes alone."""

    def feature_scores(self, network, support, query):
        first = (torch.arange(len(query)) == 0).view(-1, 1, 1)
        return super().feature_scores(network, support, query).where(first, torch.nan)


def test_scores_that_are_not_numbers_are_no_classification(trained):
    """All of them would count as the first class."""
    network, dataset = trained.load_network(), load_split(trained.config, "test")
    mean, std = trained.normalisation()
    episodes = Episodes(dataset.labels, 3, 2, 4, 5, 9)
    with pytest.raises(ns.NotFiniteError, match="honest: expected scores that are numbers, got"):
        evaluate_method(Undefined(), network, dataset, episodes, mean=mean, std=std)


def test_a_run_whose_validation_is_not_a_number_has_diverged(tmp_path, monkeypatch):
    """The queue of experiments records divergence as a result, and goes on."""
    monkeypatch.setattr(task, "validating_method", lambda method: Undefined())
    with pytest.raises(
        ns.DivergedError,
        match=r"evaluation at step \d+ failed; .* expected scores that are numbers",
    ):
        train_method(replace(SMALL, epochs=1.0), tmp_path / "run")


@pytest.mark.parametrize(
    ("method", "options"),
    [("laplacianshot", {}), ("tim", {"steps": 5}), ("transductive_finetune", {"epochs": 2})],
)
def test_a_run_of_a_transductive_method(method, options, tmp_path):
    config = replace(SMALL, method=method, method_options=options, episodes=6, epochs=1.0)
    run = train_method(config, tmp_path / "run")
    (record,) = run.evaluate([Trial(1)])
    assert record["inference"] == "transductive"
    assert (record["batch_norm"], record["episodes"]) == ("running", 6)
    evaluations = [line for line in run.metrics() if line["kind"] == "eval"]
    assert {line["validated_by"] for line in evaluations} == {"proto"}


def test_a_test_centres_by_the_mean_of_the_base_images(tmp_path):
    run = train_method(replace(SMALL, method="simpleshot", epochs=1.0), tmp_path / "run")
    (record,) = run.evaluate([Trial(1)])
    network, dataset = run.load_network(), load_split(run.config, "test")
    mean, std = run.normalisation()
    base = load_split(run.config, "train")
    network.base_mean = network((base.images / 255 - mean[0]) / std[0]).mean(0).detach()
    episodes = Episodes(dataset.labels, 3, 1, 4, 0, 30)
    method = run.config.build_method()
    result = evaluate_method(method, network, dataset, episodes, mean=mean, std=std)
    assert record["inference"] == result.inference == "inductive"
    assert record["accuracies"] == pytest.approx(result.accuracies)
