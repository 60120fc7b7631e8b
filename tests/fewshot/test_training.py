"""Few-shot methods are trained by the loop that trains everything, and keep its promises."""

from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from support.fewshot_runs import SMALL, torchrun
from support.killing import Killed, killed_at, timeless

import neural_similarity as ns
from neural_similarity.data import Episodes
from neural_similarity.fewshot import FewShotConfig, FewShotRun, list_methods, train_method
from neural_similarity.fewshot.from_settings import configs_from_settings
from neural_similarity.fewshot.task import FewShotTask, validating_method
from neural_similarity.fewshot.training_data import EpisodeLoader, base_classes
from neural_similarity.train import Run, TrainConfig, build_optimizer
from neural_similarity.train.distributed import World


@pytest.mark.parametrize("method", ["proto", "finetune", "maml", "tadam"])
def test_a_killed_run_goes_on_to_the_same_bits(tmp_path, method):
    config = replace(SMALL, method=method, steps=8)
    whole = train_method(config, tmp_path / "whole")
    broken = replace(config, checkpoint_minutes=0.0)
    for step in (1, 4, 6):
        with pytest.raises(Killed):
            train_method(broken, tmp_path / "broken", resume=True, callback=killed_at(step))
    resumed = train_method(None, tmp_path / "broken", resume=True)
    for name in ("last.safetensors", "best.safetensors"):
        a, b = load_file(whole.folder / name), load_file(resumed.folder / name)
        assert a.keys() == b.keys()
        assert all(torch.equal(a[key], b[key]) for key in a)
    assert timeless(whole.metrics()) == timeless(resumed.metrics())
    assert [line["step"] for line in whole.metrics() if line["kind"] == "eval"] == [4, 8]


def test_an_l1_penalty_is_added_to_the_loss_of_images():
    """Two layers whose M starts at the identity, nine ones each."""
    losses = []
    for l1 in (0.0, 0.01):
        config = replace(SMALL, method="dynamic", similarity_l1=l1)
        task = FewShotTask(FewShotRun(Path(), config), World())
        losses.append(task.network()(*next(task.batches.epoch()))[0].item())
    assert losses[1] - losses[0] == pytest.approx(0.01 * 18, rel=1e-4)


@pytest.mark.parametrize(
    ("method", "got"),
    [
        ("proto", "a similarity with similarity_l1, got none"),
        ("meta_static", "a method that trains the similarity on images .* got 'meta_static'"),
        ("static", "a method that trains the similarity on images .* got 'static'"),
    ],
)
def test_an_l1_penalty_that_would_do_nothing_is_refused(method, got):
    with pytest.raises(ns.RunError, match=f"expected {got}"):
        replace(SMALL, method=method, similarity_l1=0.01)


def test_patience_ends_training_also_of_a_run_that_was_killed(tmp_path, monkeypatch):
    """An error that is as low as the lowest is no progress; a lower one starts the count again."""
    errors, measure = iter([0.5, 0.6, 0.4, 0.4, 0.45] * 2), FewShotTask.evaluate

    def evaluate(self, world):
        return {**measure(self, world), "error": next(errors)}

    monkeypatch.setattr(FewShotTask, "evaluate", evaluate)
    config = replace(SMALL, steps=40, epoch_steps=2, patience=2)
    whole = train_method(config, tmp_path / "whole")
    broken = replace(config, checkpoint_minutes=0.0)
    for step in (5, 9):  # after the second and the fourth validation
        with pytest.raises(Killed):
            train_method(broken, tmp_path / "broken", resume=True, callback=killed_at(step))
    for _ in range(2):  # the second time, there is nothing left to do
        resumed = train_method(None, tmp_path / "broken", resume=True)
        assert timeless(whole.metrics()) == timeless(resumed.metrics())
        assert resumed.metrics()[-1]["step"] == 10
        for name in ("last.safetensors", "best.safetensors"):
            a, b = load_file(whole.folder / name), load_file(resumed.folder / name)
            assert all(torch.equal(a[key], b[key]) for key in a)
    assert list(errors) == []


@pytest.mark.parametrize("method", ["proto", "r2d2", "finetune", "dynamic"])
def test_training_learns(tmp_path, method):
    run = train_method(replace(SMALL, method=method, epochs=8.0, lr=0.01), tmp_path / "run")
    errors = [line["error"] for line in run.metrics() if line["kind"] == "eval"]
    assert min(errors) < 0.25  # chance is two thirds
    best = FewShotRun.open(tmp_path / "run")
    assert best.chosen() == "best"
    assert set(best.environment()["data_copies"]) == {"base", "val"}


def test_base_classes_with_validation_classes_validate_nothing(tmp_path):
    run = train_method(replace(SMALL, base="train+val", steps=2), tmp_path / "run")
    assert run.chosen() == "last"
    assert not [line for line in run.metrics() if line["kind"] == "eval"]
    assert len(run.classes()) == 10
    base, rest = base_classes(run.config)
    assert rest is None
    assert torch.equal(base.labels.unique(), torch.arange(10))


def test_training_episodes_are_those_of_the_numbers_and_shared_by_processes():
    base, _ = base_classes(SMALL)
    mean, std = base.statistics()
    whole = EpisodeLoader(base, SMALL, mean, std, World())
    halves = [EpisodeLoader(base, SMALL, mean, std, World(rank, 2)) for rank in range(2)]
    for step, batch in enumerate(whole.epoch(1, 2)):
        parts = [list(half.epoch(1, 2))[step] for half in halves]
        for ours, *theirs in zip(batch, *parts, strict=True):
            assert torch.equal(ours, torch.cat(theirs))
    first = next(iter(whole.epoch(0)))
    drawn = Episodes(base.labels, 3, 2, 4, SMALL.seed, 2).batch(0, 2)
    wanted = (base.images[drawn.support].float() / 255 - mean[0]) / std[0]
    torch.testing.assert_close(first[0], wanted, rtol=1e-5, atol=1e-5)
    with pytest.raises(ns.DataError, match="tasks that can be divided among 3 processes, got 2"):
        EpisodeLoader(base, SMALL, mean, std, World(0, 3))


TOGETHER = """
import sys
from dataclasses import replace
from pathlib import Path
from support.fewshot_runs import SMALL
from neural_similarity.fewshot import train_method
sync = sys.argv[2] != "maml"
train_method(replace(SMALL, method=sys.argv[2], sync_batch_norm=sync, steps=6), Path(sys.argv[1]))
"""


@pytest.mark.parametrize("method", ["proto", "maml", "tadam"])
@pytest.mark.slow  # test_two_processes has the gradients, and test_distributed the loop
def test_two_processes_train_as_one(tmp_path, method):
    """MAML looks at tasks one by one, so its BatchNorm needs no other process."""
    (tmp_path / "script.py").write_text(TOGETHER)
    done = torchrun(tmp_path / "script.py", tmp_path / "two", method)
    assert done.returncode == 0, done.stderr
    two = FewShotRun.open(tmp_path / "two")
    one = train_method(replace(two.config, sync_batch_norm=False), tmp_path / "one")
    losses = [[m["loss"] for m in run.metrics() if m["kind"] == "train"] for run in (one, two)]
    # Sums over halves round otherwise; six steps of Adam let it grow to 1e-4 at most.
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
    assert two.environment()["processes"] == 2


@pytest.mark.parametrize("method", ["nearest", "static", "meta_static"])
def test_methods_begin_with_the_network_of_another(tmp_path, method):
    plain = train_method(replace(SMALL, method="finetune", steps=3), tmp_path / "plain")
    config = replace(SMALL, method=method, backbone=str(plain.folder), epochs=0.0)
    run = train_method(config, tmp_path / "run")
    images = torch.randn(5, 1, 8, 8)
    ours, theirs = run.load_network(), plain.load_network()
    torch.testing.assert_close(ours(images), theirs(images))
    fresh = run.build_network(6, 1, 8).eval()
    assert not torch.allclose(fresh(images), theirs(images))


def test_a_method_takes_the_head_of_its_own_run(tmp_path):
    first = train_method(replace(SMALL, method="relation", steps=3), tmp_path / "first")
    again = replace(first.config, backbone=str(first.folder), steps=None, epochs=0.0)
    second = train_method(replace(again, batch_norm="batch"), tmp_path / "second")
    assert_same_weights(first, second)
    # A head for another number of classes does not fit.
    maml = train_method(replace(SMALL, method="maml", steps=1), tmp_path / "maml")
    other = replace(maml.config, backbone=str(maml.folder), train_way=4)
    wider = FewShotTask(FewShotRun(tmp_path / "wider", other), World()).model
    assert wider.head.weight.shape[0] == 4
    with pytest.raises(ns.RunError, match="expected a head that fits these options of 'maml', got"):
        FewShotTask(FewShotRun(tmp_path / "w", replace(other, steps=None, epochs=0.0)), World())


def assert_same_weights(one, other):
    ours, theirs = (run.load_network().state_dict() for run in (one, other))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_the_head_may_learn_at_another_rate(tmp_path):
    still = train_method(
        replace(SMALL, method="relation", steps=2, head_rate=0.0, weight_decay=0.0), tmp_path / "a"
    )
    begin, end = still.build_network(3, 1, 8), still.load_network("last")
    assert all(torch.equal(p, q) for p, q in pairs(begin.head, end.head))
    assert not any(torch.equal(p, q) for p, q in pairs(begin.backbone, end.backbone))
    model = still.build_network(3, 1, 8)
    groups = build_optimizer(replace(still.config, head_rate=10.0), model).param_groups
    factors = {p: group["lr_factor"] for group in groups for p in group["params"]}
    assert {factors[p] for p in model.backbone.parameters()} == {1.0}
    assert {factors[p] for p in model.head.parameters()} == {10.0}
    rates = {p: group["lr"] for group in groups for p in group["params"]}
    assert {rates[p] for p in model.head.parameters()} == {0.01}
    backbone = build_optimizer(still.config, model.backbone)  # without a head
    assert {group["lr"] for group in backbone.param_groups} == {0.001}
    with pytest.raises(ns.RunError, match="expected head_rate of at least 0, got -1"):
        replace(SMALL, head_rate=-1.0)


def pairs(one, other):
    return list(zip(one.parameters(), other.parameters(), strict=True))


def test_backbones_that_do_not_fit(tmp_path):
    plain = train_method(replace(SMALL, method="finetune", steps=1), tmp_path / "plain")
    small = replace(SMALL, backbone=str(plain.folder))
    for config, message in (
        (replace(small, image_size=10), "1 channel.* side 10, as in 'tiny', got one for 1 and 8"),
        (replace(small, method="dynamic"), "expected a network with similarity 'dynamic'"),
        (replace(small, model="cnn4", image_size=None), "expected model 'cnn4', got 'cnn9'"),
        (replace(SMALL, method="meta_static"), "expected a backbone for 'meta_static', got none"),
    ):
        with pytest.raises(ns.RunError, match=message):
            train_method(config, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_run_has_the_similarity_of_the_network_it_starts_from(tmp_path):
    first = replace(SMALL, method="dynamic", layers=r"stages\.0\.0", norm_eps=1e-3, epochs=0.0)
    run = train_method(first, tmp_path / "dynamic")
    settings = {"method": "meta_dynamic", "backbone": str(run.folder)}
    (inherited,) = configs_from_settings(settings).values()
    assert inherited.layers == first.layers
    assert inherited.norm_eps == first.norm_eps
    other = replace(first, method="meta_dynamic", backbone=str(run.folder), layers=None)
    with pytest.raises(ns.RunError, match=r"expected layers None, got 'stages\\.*cannot change"):
        train_method(other, tmp_path / "new")


def test_runs_of_another_kind_are_told_apart(tmp_path):
    run = train_method(replace(SMALL, steps=1), tmp_path / "run")
    expected = r"expected a run of 'nsl train', got 'nsl fewshot train'"
    with pytest.raises(ns.RunError, match=expected):
        Run.open(run.folder)
    Run(tmp_path / "other", TrainConfig()).create()
    with pytest.raises(ns.RunError, match=r"run of 'nsl fewshot train', got 'nsl train'"):
        FewShotRun.open(tmp_path / "other")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "protos"}, "Did you mean 'proto'"),
        ({"base": "val"}, "expected base to be one of 'train', 'train\\+val', got 'val'"),
        ({"n_way": 0}, "expected n_way of at least 1, got 0"),
        ({"method": "r2d2", "method_options": {"rigde": 1}}, "Did you mean 'ridge'"),
        ({"method_options": {"batch_norm": "batch"}}, "Set batch_norm instead"),
        ({"batch_norm": "eval"}, "expected batch_norm to be one of 'batch', 'running'"),
        ({"method": "static", "similarity": "none"}, "expected similarity 'static' for 'static'"),
        ({"epochs": -1}, "expected epochs of at least 0, got -1"),
        ({"patience": 2, "base": "train+val"}, "expected base 'train' with patience"),
        ({"kind": "train"}, "expected settings of 'nsl fewshot train', got 'nsl train'"),
    ],
)
def test_wrong_settings(settings, message):
    with pytest.raises(ns.NeuralSimilarityError, match=message):
        FewShotConfig.from_dict(settings)


def test_every_setting_is_explained_and_kept():
    assert all(field.metadata["help"] for field in fields(FewShotConfig))
    assert FewShotConfig.from_dict(SMALL.to_dict()) == SMALL
    assert FewShotConfig().learning_rate == 1e-3
    assert FewShotConfig(method="dynamic").similarity_kind() == "dynamic"
    assert FewShotConfig(similarity="dynamic").similarity_kind() == "dynamic"


def test_slow_methods_are_validated_by_prototypes():
    for name in list_methods():
        method = replace(SMALL, method=name).build_method()
        slow = not method.from_features or method.transductive or method.needs_base_mean
        quick = not slow or method.trains_on != "images"
        assert validating_method(method).name == (name if quick else "proto")


def test_data_that_are_not_enough(tmp_path):
    with pytest.raises(ns.DataError, match="expected at least 7 classes for 7-way episodes, got 6"):
        train_method(replace(SMALL, train_way=7), tmp_path / "run")
    with pytest.raises(ns.DataError, match="expected at least 14 images of each class"):
        train_method(replace(SMALL, method="finetune", n_shot=10), tmp_path / "run")
    assert not (tmp_path / "run").exists()
