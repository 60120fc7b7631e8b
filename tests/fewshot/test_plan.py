"""Plans: what is trained first, what is shared, and what is not repeated."""

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from support.fewshot_runs import SMALL

import neural_similarity as ns
from neural_similarity.fewshot import (
    FewShotConfig,
    Trial,
    list_methods,
    order_runs,
    plan_runs,
    read_plan,
    run_plan,
)
from neural_similarity.fewshot import plan as plan_module
from neural_similarity.fewshot.from_settings import DEMO, configs_from_settings
from neural_similarity.train.runs.folders import alone

QUICK = replace(SMALL, steps=2, val_episodes=2, episodes=2)


def configs(*methods, **settings):
    return [replace(QUICK, method=method, **settings) for method in methods]


def order(plan):
    return [(run.name, run.starts_from) for run in plan]


class Lines:
    """Remembers which runs were trained, and which were tested."""

    def __init__(self, stop_at=None):
        self.trained, self.tested, self.stop_at = {}, [], stop_at

    def __call__(self, planned, line):
        if line["kind"] == "train":
            self.trained[planned.name] = line["step"]
        if line["kind"] == "test":
            self.tested.append((planned.name, line["test"], line["done"], line["total"]))
        if planned.name == self.stop_at:
            raise KeyboardInterrupt


@pytest.mark.parametrize("method", ["feat", "meta_dynamic"])
def test_the_rate_of_a_head_is_not_that_of_the_network_before(tmp_path, method):
    before, run = plan_runs(configs(method, head_rate=10.0), tmp_path / "all")
    assert (before.config.head_rate, run.config.head_rate) == (1.0, 10.0)


@pytest.mark.parametrize(
    ("method", "first"), [("meta_static", "plain"), ("meta_dynamic", "dynamic")]
)
def test_a_meta_learned_method_gets_its_backbone_trained_first(tmp_path, method, first):
    plan = plan_runs(configs(method), tmp_path / "all")
    assert order(plan) == [(first, None), (method, first)]
    assert plan.is_comparison
    lines = Lines()
    finished = run_plan(plan, [Trial(1)], callback=lines)
    assert list(lines.trained.items()) == [(first, 2), (method, 2)]
    assert {name for name, *_ in lines.tested} == {run.name for run in plan if run.tested}
    assert ("plain" in {name for name, *_ in lines.tested}) is False
    assert lines.tested[-1] == (method, "3way-1shot-2-0-4query", 2, 2)
    assert finished[-1].run.config.backbone == str(tmp_path / "all" / first)
    assert [result["n_shot"] for result in finished[-1].results] == [1]


def test_methods_share_one_backbone(tmp_path):
    plan = plan_runs(
        configs("nearest", "ridge", "proto", "static", "meta_static"), tmp_path / "all"
    )
    assert order(plan) == [
        ("plain", None), ("nearest", "plain"), ("ridge", "plain"), ("proto", None),
        ("static", "plain"), ("meta_static", "plain"),
    ]  # fmt: skip
    assert [run.name for run in plan if run.config.epochs == 0] == ["nearest", "ridge", "static"]
    assert not (tmp_path / "all").exists(), "a plan writes nothing"
    lines = Lines()
    finished = run_plan(plan, callback=lines)
    assert set(lines.trained) == {"plain", "proto", "meta_static"}
    assert lines.tested == []
    assert [one.name for one in finished] == [run.name for run in plan]
    plain, nearest, ridge = (one.run.load_network().backbone for one in finished[:3])
    for network in (nearest, ridge):
        for ours, theirs in zip(plain.parameters(), network.parameters(), strict=True):
            assert ours.equal(theirs)


def test_a_network_that_trains_a_similarity_is_not_the_plain_one(tmp_path):
    """Except for ``static``, whose M does not move in training."""
    plan = plan_runs(configs("finetune", "ridge", "static", similarity="static"), tmp_path / "all")
    assert order(plan) == [("finetune", None), ("ridge", None), ("static", None)]
    penalised = plan_runs(configs("finetune", similarity="static", similarity_l1=0.1), tmp_path)
    assert [run.config.similarity_l1 for run in penalised] == [0.1]


def test_a_stopped_plan_goes_on_and_repeats_nothing(tmp_path):
    folder = tmp_path / "all"
    plan = plan_runs(configs("finetune", "nearest", "meta_static"), folder)
    with pytest.raises(KeyboardInterrupt):
        run_plan(plan, [Trial(1)], callback=Lines(stop_at="meta_static"))
    stored = read_plan(folder)
    assert order(stored) == order(plan)
    assert [run.config for run in stored] == [run.config for run in plan]
    weights = (folder / "plain" / "last.safetensors").stat().st_mtime_ns
    lines = Lines()
    finished = run_plan(stored, [Trial(1)], resume=True, callback=lines)
    assert set(lines.trained) == {"meta_static"}, "the backbone was trained again"
    assert {name for name, *_ in lines.tested} == {"meta_static"}
    assert (folder / "plain" / "last.safetensors").stat().st_mtime_ns == weights
    assert [len(one.results) for one in finished] == [0, 1, 1, 1]
    with pytest.raises(ns.RunError, match="expected a new folder, got one that exists"):
        run_plan(plan, [Trial(1)])
    other = plan_runs(configs("finetune", "nearest", "meta_static", seed=1), folder)
    with pytest.raises(ns.RunError, match="the settings the runs began with, got different ones"):
        run_plan(other, resume=True)
    again = Lines()
    run_plan(plan, force=True, callback=again)
    assert set(again.trained) == {"plain", "meta_static"}


def test_a_finished_backbone_is_not_trained_again(tmp_path):
    ((_, plain, _),) = run_plan(plan_runs(configs("finetune"), tmp_path / "plain"))
    before = sorted((file, file.stat().st_mtime_ns) for file in plain.folder.rglob("*"))
    backbone = str(plain.folder)
    plan = plan_runs(configs("static", "meta_static", backbone=backbone), tmp_path / "all")
    assert order(plan) == [("static", None), ("meta_static", None)]
    lines = Lines()
    run_plan(plan, callback=lines)
    assert set(lines.trained) == {"static", "meta_static"}
    assert sorted((file, file.stat().st_mtime_ns) for file in plain.folder.rglob("*")) == before


def test_a_single_method_goes_into_the_folder_itself(tmp_path):
    plan = plan_runs(configs("proto"), tmp_path / "run")
    assert [run.folder for run in plan] == [tmp_path / "run"]
    assert not plan.is_comparison
    run_plan(plan, [Trial(1)])
    assert (tmp_path / "run" / "results").is_dir()
    assert [run.config for run in read_plan(tmp_path / "run")] == [run.config for run in plan]
    moved = read_plan(tmp_path / "run", {"data_dir": str(tmp_path)})
    assert moved.runs[0].config.data_dir == str(tmp_path)
    assert read_plan(tmp_path / "run", {"method": "proto"}) is None
    assert read_plan(tmp_path / "none", {"seed": 1}) is None
    with pytest.raises(ns.RunError, match="expected the folder of a run, got none"):
        read_plan(tmp_path / "none")


def test_everything_is_checked_before_anything_is_written(tmp_path):
    plan = plan_runs(configs("nearest", "proto"), tmp_path / "all")
    with pytest.raises(ns.DataError, match="expected at least 13 images of each class"):
        run_plan(plan, [Trial(9)])
    overlapping = plan_runs(configs("nearest", "proto", data="overlapping"), tmp_path / "all")
    with pytest.raises(ns.DataError, match="expected test classes that were not trained on"):
        run_plan(overlapping, [Trial(1)])
    assert not (tmp_path / "all").exists()


def test_networks_are_shared_only_by_runs_that_agree(tmp_path):
    one, other = configs("nearest", "finetune")
    with pytest.raises(ns.RunError, match=r"same seed for 'nearest' and 'finetune', got 0 and 1"):
        plan_runs([one, replace(other, seed=1)], tmp_path)
    with pytest.raises(ns.RunError, match=r"same image_size for 'nearest' and 'meta_static'"):
        plan_runs([one, replace(other, method="meta_static", image_size=16)], tmp_path)
    longer = replace(other, method="meta_static", steps=5)  # of its own training
    assert order(plan_runs([one, longer], tmp_path))[0] == ("plain", None)


def test_names(tmp_path):
    named = {
        "mine": replace(QUICK, method="dynamic"),
        "meta": replace(QUICK, method="meta_dynamic"),
    }
    assert order(plan_runs(named, tmp_path)) == [("mine", None), ("meta", "mine")]
    proto = FewShotConfig(method="proto")
    for methods in (["proto"], "proto", proto):
        assert [run.config for run in plan_runs(methods, tmp_path)] == [proto]
    for methods, message in (
        (["proto", "proto"], "expected every method once, got 'proto' twice"),
        ([], "expected at least one method, got none"),
        ({"plain": QUICK}, "expected folder names other than 'plain', got 'plain'"),
        ({"../x": QUICK}, "got '../x'"),
        ({"dynamic": QUICK, "meta": named["meta"]}, "the name 'dynamic' for a run of that method"),
    ):
        with pytest.raises(ns.RunError, match=message):
            plan_runs(methods, tmp_path)


def test_every_method_can_be_planned(tmp_path):
    plan = plan_runs(configs(*list_methods()), tmp_path)
    names = [run.name for run in plan]
    assert set(list_methods()) <= set(names)
    for run in plan:
        assert (run.starts_from is None) == (run.config.backbone is None)
        if run.starts_from is not None:
            assert names.index(run.starts_from) < names.index(run.name)


def test_the_order_of_runs_is_that_of_what_they_start_from():
    runs = {name: replace(QUICK, method=name) for name in ("meta_static", "static", "finetune")}
    chosen = {"static": "finetune"}
    whole = {"finetune": None, "static": "finetune", "meta_static": "static"}
    assert list(order_runs(runs, chosen).items()) == list(whole.items())
    assert order_runs(runs, chosen, only=["static"]) == {"finetune": None, "static": "finetune"}
    assert order_runs(runs, chosen | {"meta_static": "finetune"})["meta_static"] == "finetune"
    stored = runs | {"meta_static": replace(runs["meta_static"], backbone="runs/static")}
    assert order_runs(stored)["meta_static"] is None
    for starts, error, message in (
        (chosen | {"finetune": "static"}, ns.RunError, "a cycle: static from finetune from st"),
        ({"static": "nearest"}, ns.UnknownNameError, "expected run to be one of .*got 'nearest'"),
    ):
        with pytest.raises(error, match=message):
            order_runs(runs, starts, only=["static"])
    del runs["static"]
    with pytest.raises(ns.RunError, match="a run of 'static' for 'meta_static' to start from"):
        order_runs(runs)


def test_the_demonstration_compares_several_methods():
    demo = configs_from_settings({})
    assert list(demo) == list(DEMO)
    assert set(DEMO) <= set(list_methods())
    assert {"static", "dynamic", "meta_static"} < set(DEMO), "the paper's, beside others"
    assert {config.data for config in demo.values()} == {"glyphs"}
    plan = plan_runs(demo, "x")
    assert next(iter(plan)).name == "plain"
    assert {"nearest", "finetune", "static"} <= {run.name for run in plan if run.config.epochs == 0}
    meta = next(run for run in plan if run.name == "meta_static")
    assert meta.config.backbone == str(Path("x/plain").absolute())
    assert {c.seed for c in configs_from_settings({"seed": 3}).values()} == {3}


def test_a_plan_that_somebody_carries_out_is_not_replaced(tmp_path):
    plan = plan_runs(configs("proto", "ridge"), tmp_path / "all")
    run_plan(plan, [Trial(1)])
    before = {path: path.read_bytes() for path in plan.folder.rglob("*") if path.is_file()}
    for folder in (plan.folder, plan.runs[0].folder, plan.runs[1].folder / "results"):
        with alone(folder), pytest.raises(ns.RunError, match="is training or testing in"):
            run_plan(plan, [Trial(1)], force=True)
    after = {path: path.read_bytes() for path in plan.folder.rglob("*") if path.is_file()}
    assert after == before


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_restart_that_another_machine_notices_is_one(tmp_path, monkeypatch, elsewhere):
    """With ``force``, a plan that is taken for a new one would replace its trained runs."""

    class Sums:
        def sum(self, values):
            return values + elsewhere

    resumes = []
    monkeypatch.setattr(plan_module, "join_world", lambda device: nullcontext(Sums()))
    monkeypatch.setattr(plan_module, "_check", lambda plan, tests, resume: resumes.append(resume))
    monkeypatch.setattr(plan_module, "_run", lambda *arguments: None)
    run_plan(plan_runs(configs("proto", "nearest"), tmp_path / "all"), force=True)
    assert resumes == [elsewhere]
