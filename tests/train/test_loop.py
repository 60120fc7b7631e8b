"""Training: what runs store, and that a run can be stopped anywhere and continued."""

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from support.killing import Killed, killed_at, timeless
from support.train_runs import SMALL, assert_same_run
from torch import nn

import neural_similarity as ns
from neural_similarity.models import registry
from neural_similarity.train import Evaluation, Run, TrainConfig, evaluate, train
from neural_similarity.train.build import build_model, build_optimizer
from neural_similarity.train.checkpoint import read_weights, write_weights

KINDS = ("none", "static", "dynamic")


@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_run_goes_on_to_the_same_bits(tmp_path, kind):
    config = replace(SMALL, similarity=kind)
    whole = train(config, tmp_path / "whole")
    broken = replace(config, checkpoint_minutes=0.0)  # after every step
    for step in (1, 4, 6, 8, 12):
        with pytest.raises(Killed):
            train(broken, tmp_path / "broken", resume=True, callback=killed_at(step))
    resumed = train(None, tmp_path / "broken", resume=True)
    assert_same_run(whole, resumed)
    assert [line["step"] for line in whole.metrics() if line["kind"] == "eval"] == [4, 8, 12]


def test_a_run_goes_on_from_its_last_checkpoint_and_forgets_what_came_after(tmp_path):
    config = replace(SMALL, optimizer="adam", lr=None)
    whole = train(config, str(tmp_path / "whole"))
    with pytest.raises(Killed):
        train(config, tmp_path / "broken", callback=killed_at(7))
    broken = Run.open(tmp_path / "broken")
    assert broken.metrics()[-1]["step"] == 6  # killed within step 7, checkpoint at 4
    with (broken.folder / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "tra')  # torn by the kill
    assert_same_run(whole, train(None, broken.folder, resume=True))


def test_weights_on_disk_always_have_their_optimiser_beside_them(tmp_path, monkeypatch):
    from neural_similarity.train import checkpoint

    def stop(*_):
        raise Killed

    with pytest.raises(Killed):
        train(SMALL, tmp_path / "run", callback=killed_at(6))
    # Killed between the two files of the next checkpoint: the old pair is still whole.
    monkeypatch.setattr(checkpoint, "write_weights", stop)
    with pytest.raises(Killed):
        train(None, tmp_path / "run", resume=True)
    monkeypatch.undo()
    names = {p.name for p in (tmp_path / "run").glob("last-*")}
    assert names == {"last-4.optimizer.safetensors", "last-8.optimizer.safetensors"}
    assert_same_run(train(SMALL, tmp_path / "whole"), train(None, tmp_path / "run", resume=True))


def test_what_a_kill_left_after_the_last_checkpoint_is_removed(tmp_path):
    run = train(replace(SMALL, steps=2), tmp_path / "run")
    before = sorted(path.name for path in run.folder.iterdir())
    (run.folder / "last-1.optimizer.safetensors").write_bytes(b"of an older step")
    (run.folder / ".nsl-scratch-killed").mkdir()
    train(None, run.folder, resume=True)
    assert sorted(path.name for path in run.folder.iterdir()) == before


def test_seeds_differ_and_repeat(tmp_path):
    runs = {
        name: train(replace(SMALL, seed=seed, epochs=1.0), tmp_path / name)
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    }
    losses = {name: timeless(run.metrics()) for name, run in runs.items()}
    assert losses["a"] == losses["b"] != losses["c"]


def test_training_learns(tmp_path):
    config = TrainConfig(options={"width": 8, "hidden": 16}, batch_size=64, epochs=6.0, threads=1)
    run = train(config, tmp_path / "run")
    errors = [line["error"] for line in run.metrics() if line["kind"] == "eval"]
    assert errors[-1] < 0.15 < errors[0]
    test = run.test_set()
    mean, std = run.normalisation()
    loader = ns.data.eval_loader(test, 100, mean=mean, std=std)
    assert evaluate(run.load_model(), loader).error == errors[-1]
    assert evaluate(run.load_model("best"), loader).error == min(errors)


def test_divergence_ends_with_the_step_and_keeps_the_checkpoint(tmp_path):
    with pytest.raises(ns.RunError, match=r"expected .*finite .* at step \d+\. Training has"):
        train(replace(SMALL, lr=1e18, schedule="constant"), tmp_path / "run")
    with pytest.raises(Killed):
        train(SMALL, tmp_path / "good", callback=killed_at(5))
    before = (tmp_path / "good" / "last.safetensors").read_bytes()
    path = tmp_path / "good" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "lr": 1e18}))
    with pytest.raises(ns.RunError, match="the last checkpoint was not changed"):
        train(None, tmp_path / "good", resume=True)
    assert (tmp_path / "good" / "last.safetensors").read_bytes() == before


@pytest.mark.parametrize(
    "setting",
    [
        {"autocast": True}, {"grad_clip": 0.1}, {"label_smoothing": 0.2}, {"channels_last": False},
        {"schedule": "constant"}, {"momentum": 0.0}, {"weight_decay": 0.5}, {"validation": 0.2},
    ],
    ids=lambda setting: next(iter(setting)),
)  # fmt: skip
def test_every_setting_has_an_effect(tmp_path, setting):
    plain = train(replace(SMALL, steps=3), tmp_path / "plain")
    other = train(replace(SMALL, steps=3, **setting), tmp_path / "other")
    losses = [[m["loss"] for m in run.metrics()] for run in (plain, other)]
    same_numbers = "channels_last" in setting  # another memory layout, the same mathematics
    assert (losses[0] == pytest.approx(losses[1], rel=1e-4)) == same_numbers


def test_a_finished_run_has_nothing_left_to_do(tmp_path):
    run = train(replace(SMALL, steps=2), tmp_path / "run")
    before = run.metrics()
    assert train(None, run.folder, resume=True).metrics() == before


def test_wrong_folders(tmp_path):
    train(replace(SMALL, steps=1), tmp_path / "run")
    with pytest.raises(ns.RunError, match="expected a new folder, got one that exists"):
        train(SMALL, tmp_path / "run")
    with pytest.raises(ns.RunError, match=r"expected the settings the run began with, got.*for lr"):
        train(replace(SMALL, steps=1, lr=0.5), tmp_path / "run", resume=True)
    with pytest.raises(ns.RunError, match="expected the folder of a run, got none"):
        train(None, tmp_path / "none", resume=True)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ns.RunError, match=r"got a folder without config\.json"):
        Run.open(tmp_path / "empty")
    (tmp_path / "empty" / "config.json").write_text("{")
    with pytest.raises(ns.RunError, match=r"config\.json: expected JSON, got damaged text"):
        Run.open(tmp_path / "empty")


def test_weights_that_are_not_finite_are_never_kept(tmp_path):
    """The loss of a step is that of the weights before it: the step itself may destroy them."""
    config = replace(SMALL, batch_size=5000, epochs=3.0, schedule="constant", lr=1e38)
    with pytest.raises(ns.RunError, match=r"expected .*(finite weights|finite loss).* at step 1"):
        train(config, tmp_path / "run")
    assert not (tmp_path / "run" / "last.safetensors").exists()


def test_one_process_at_a_time_trains_into_a_folder(tmp_path):
    run = train(replace(SMALL, steps=1), tmp_path / "run")
    with run.alone(), pytest.raises(ns.RunError, match="that another process is training"):
        train(None, run.folder, resume=True)


def test_images_of_other_classes_are_refused(tmp_path, monkeypatch):
    run = train(replace(SMALL, steps=1), tmp_path / "run")
    monkeypatch.setattr(Run, "classes", lambda self: tuple("abcdefghij"))
    with pytest.raises(ns.RunError, match="expected images of the classes the run was trained on"):
        run.test_set()


def test_evaluation_on_images_set_apart_or_of_the_test(tmp_path):
    config = replace(SMALL, steps=2, validation=0.2)
    run = train(config, tmp_path / "run")
    assert run.environment()["evaluated_on"] == "validation"
    assert len(run.test_set()) == len(run.test_set("test")) == 539
    assert run.metrics()[-1]["images"] == len(run.test_set("validation")) < 300
    plain = train(replace(SMALL, steps=1), tmp_path / "plain")
    assert plain.environment()["evaluated_on"] == "test"
    with pytest.raises(ns.UnknownNameError, match="expected split to be one of 'test'"):
        plain.test_set("validation")


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"device": "gpu"}, "expected device to be 'auto', 'cpu' or 'cuda', got 'gpu'"),
        ({"options": {"depths": 3}}, "expected options that 'cnn9' takes and structure_options"),
        (
            {"options": {"conv_layer": "x"}},
            "expected options that 'cnn9' takes and structure_options",
        ),
    ],
)
def test_settings_that_do_not_work_leave_nothing_behind(tmp_path, setting, message):
    with pytest.raises(ns.RunError, match=message):
        train(replace(SMALL, **setting), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_mistake_in_code_of_ones_own_is_shown_as_it_is(tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))
    ns.models.register_model("mine", lambda num_classes, **_: num_classes + None)
    with pytest.raises(TypeError, match="unsupported operand"):
        train(replace(SMALL, model="mine", options={}), tmp_path / "run")


def test_other_data_is_refused(tmp_path):
    run = train(replace(SMALL, steps=1), tmp_path / "run")
    file = run.folder / "environment.json"
    starts = json.loads(file.read_text())
    starts[0]["data_copies"]["train"] = "another"
    file.write_text(json.dumps(starts))
    with pytest.raises(
        ns.RunError, match="expected the data the run began with, got different data"
    ):
        train(None, run.folder, resume=True)


def test_damaged_weights_are_named(tmp_path):
    run = train(replace(SMALL, steps=1), tmp_path / "run")
    file = run.folder / "last.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])
    with pytest.raises(ns.RunError, match=r"last\.safetensors: expected a checkpoint, got a file"):
        run.load_model()
    other = Run(run.folder, replace(run.config, options={"width": 6, "hidden": 8}))
    file.write_bytes(content)
    with pytest.raises(ns.RunError, match="expected the weights of this network, got those of"):
        other.load_model()


def test_shared_predictors_are_saved_once_and_stay_shared(tmp_path):
    config = replace(SMALL, similarity="dynamic", shared=True)
    model = build_model(config, 10, 1, 8)
    write_weights(tmp_path / "w", model, {"step": 3})
    stored = sum(t.numel() for t in load_file(tmp_path / "w").values())
    state = model.state_dict()
    assert stored == sum({t.data_ptr(): t.numel() for t in state.values()}.values())
    assert stored < sum(t.numel() for t in state.values())
    other = build_model(replace(config, seed=1), 10, 1, 8)
    assert read_weights(tmp_path / "w", other) == {"step": 3}
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)


def decays(config):
    model = build_model(config, 10, 1, 8)
    optimizer = build_optimizer(config, model)
    names = {parameter: name for name, parameter in model.named_parameters()}
    return {
        names[p]: group["weight_decay"] for group in optimizer.param_groups for p in group["params"]
    }, model


@pytest.mark.parametrize(
    ("structure", "given", "expected"),
    [("diagonal", None, 5e-4), ("unconstrained", None, 5e-3), ("unconstrained", 0.0, 0.0)],
)
def test_static_similarity_decays_apart(structure, given, expected):
    config = replace(SMALL, similarity="static", structure=structure, similarity_decay=given)
    found, model = decays(config)
    assert found.keys() == dict(model.named_parameters()).keys()
    for name, decay in found.items():
        if ".numbers." in name:
            assert decay == expected
        else:
            assert decay == (5e-4 if model.get_parameter(name).dim() > 1 else 0), name


@pytest.mark.parametrize("similarity", ["static", "dynamic"])
def test_a_kernel_shape_does_not_decay(similarity):
    config = replace(SMALL, similarity=similarity, structure="kernel_shape", similarity_decay=0.1)
    found, model = decays(config)
    masks = {name: decay for name, decay in found.items() if "shape" in name.rpartition(".")[2]}
    assert list(masks.values()) == [0.0] * 9
    assert found.keys() == dict(model.named_parameters()).keys()
    if similarity == "static":
        assert list(found.values()).count(0.1) == len(masks), "R does"


def test_predictors_decay_apart():
    config = replace(SMALL, similarity="dynamic", predictor_decay=5e-3)
    found, model = decays(config)
    for name, decay in found.items():
        weight = model.get_parameter(name).dim() > 1
        assert decay == ((5e-3 if "predictor" in name else 5e-4) if weight else 0), name
    assert sum(decay == 5e-3 for decay in found.values()) == 18


def test_the_interval_is_wilsons():
    # Worked by hand for 10 errors of 100: Agresti and Coull's centre 0.1148, half-width 0.0594.
    low, high = Evaluation(10, 100, 0.0).interval()
    assert (low, high) == (pytest.approx(0.0552, abs=1e-4), pytest.approx(0.1744, abs=1e-4))
    assert Evaluation(0, 50, 0.0).interval()[0] == 0


@pytest.mark.parametrize(("classes", "expected"), [(7, 0.25), (6, 0.25), (5, None)])
def test_the_top_five_errors_by_hand(classes, expected):
    """The scores of four images put their class on the places 1, 2, 5 and 6 (or last)."""
    places = torch.tensor([0, 1, 4, min(5, classes - 1)])
    scores = -torch.arange(float(classes)).repeat(4, 1)
    labels = places

    class Batches:
        def __len__(self):
            return 2

        def epoch(self, number=0, start=0):
            yield scores[:3], labels[:3]
            yield scores[3:], labels[3:]

    result = evaluate(nn.Identity(), Batches())
    assert (result.error, result.top5_error) == (0.75, expected)


def test_evaluation_counts_every_image_once_and_keeps_the_mode():
    digits = ns.data.load_dataset("digits", "test")
    mean, std = digits.statistics()
    loader = ns.data.eval_loader(digits, 100, mean=mean, std=std)
    model = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 10))
    model.train()[1].eval()  # frozen
    result = evaluate(model, loader)
    assert result.images == len(digits)
    assert [module.training for module in model] == [True, False, True]
    assert model.training
    assert model[1].num_batches_tracked == 0
    images = torch.cat([x for x, _ in loader.epoch(0)])
    wrong = (model.eval()(images).argmax(1) != digits.labels).sum().item()
    assert result.errors == wrong
    scores = model(images)
    assert result.loss == pytest.approx(nn.functional.cross_entropy(scores, digits.labels).item())
