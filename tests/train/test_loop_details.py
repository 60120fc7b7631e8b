"""Training in detail: the rate of every step, which weights are best, random numbers by step."""

import sys
from dataclasses import replace
from itertools import pairwise, product

import pytest
import torch
from support.killing import Killed, killed_at
from support.train_runs import SMALL, assert_same_run
from torch import nn

from neural_similarity.errors import RunError
from neural_similarity.models import register_model
from neural_similarity.models.cnn import CNN
from neural_similarity.train import Run, train
from neural_similarity.train.checkpoint import read_weights
from neural_similarity.train.ingredients.schedules import SCHEDULES
from neural_similarity.train.loop import seed_step
from neural_similarity.train.task import Classification


class Noisy(CNN):
    """Random numbers inside the network, from PyTorch's own generator."""

    def __init__(self, num_classes=10, **options):
        super().__init__(num_classes, **options)
        self.drop = nn.Dropout(0.5)
        self.seen = []

    def forward_features(self, input):
        features = super().forward_features(input)
        mask = self.drop(torch.ones_like(features))
        if self.training:
            self.seen.append(mask.flatten()[:64].tolist())
        return features * mask


@pytest.fixture(autouse=True)
def noisy():
    register_model("noisy", Noisy)
    yield
    from neural_similarity.models import registry

    del registry._REGISTRY["noisy"]


def test_every_step_has_the_rate_of_its_schedule(tmp_path):
    for schedule in ("onecycle", "paper"):
        run = train(replace(SMALL, schedule=schedule), tmp_path / schedule)
        rates = {m["step"]: m["lr"] for m in run.metrics() if m["kind"] == "train"}
        for step in range(1, 13):
            assert rates[step] == pytest.approx(0.02 * SCHEDULES[schedule]((step - 1) / 12))


def test_best_are_the_weights_with_the_lowest_error(tmp_path, monkeypatch):
    errors = iter([0.5, 0.3, 0.4])
    measure = Classification.evaluate
    kept = {}

    def evaluate(self, world):
        found = {**measure(self, world), "error": next(errors)}
        kept[found["error"]] = {k: v.clone() for k, v in self.model.state_dict().items()}
        return found

    monkeypatch.setattr(Classification, "evaluate", evaluate)
    run = train(SMALL, tmp_path / "run")
    best = run.load_model("best")
    for key, value in best.state_dict().items():
        assert torch.equal(value, kept[0.3][key])
    known = read_weights(run.folder / "best.safetensors", best)
    assert (known["step"], known["error"]) == (8, 0.3)


def test_random_numbers_inside_a_network_follow_the_step(tmp_path, monkeypatch):
    made = []
    start = Noisy.__init__

    def remember(self, *arguments, **options):
        start(self, *arguments, **options)
        made.append(self)

    monkeypatch.setattr(Noisy, "__init__", remember)
    config = replace(SMALL, model="noisy", options={"width": 4, "hidden": 16})
    whole = train(config, tmp_path / "whole")
    masks = made[-1].seen
    assert len(masks) == 12
    assert all(a != b for a, b in pairwise(masks))
    with pytest.raises(Killed):
        train(config, tmp_path / "broken", callback=killed_at(7))
    torch.manual_seed(1234)  # another process would not have our generator
    assert_same_run(whole, train(None, tmp_path / "broken", resume=True))
    assert made[-1].seen == masks[4:]
    assert Run.open(tmp_path / "whole").metrics()[-1]["step"] == 12
    train(replace(config, seed=config.seed + 1), tmp_path / "other")
    assert not any(mask in masks for mask in made[-1].seen), "another seed has other numbers"


def test_seeds_processes_and_steps_draw_different_random_numbers():
    drawn = set()
    for where in product((0, 1, 2**30), (0, 1), (0, 1)):
        seed_step(*where)
        first = tuple(torch.rand(4).tolist())
        seed_step(*where)
        assert tuple(torch.rand(4).tolist()) == first
        drawn.add(first)
    assert len(drawn) == 12


def test_a_loaded_network_leaves_the_callers_random_numbers(tmp_path):
    run = train(replace(SMALL, steps=1), tmp_path / "run")
    torch.manual_seed(3)
    expected = torch.randn(2)
    torch.manual_seed(3)
    run.load_model()
    assert torch.equal(torch.randn(2), expected)


def test_one_value_per_channel_is_named(tmp_path):
    one = replace(SMALL, batch_size=1, steps=1, similarity="dynamic", predictor="image")
    with pytest.raises(RunError, match=r"expected several values for each channel of a BatchNorm"):
        train(replace(one, predictor_options={"batch_norm": True}), tmp_path / "run")


def test_tensorboard_that_is_missing_is_noticed_before_a_run_is_replaced(tmp_path, monkeypatch):
    run = train(replace(SMALL, epochs=1.0), tmp_path / "run")
    before = {file.name: file.read_bytes() for file in run.folder.iterdir() if file.is_file()}
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(RunError, match="expected the package tensorboard, got none"):
        train(replace(SMALL, epochs=2.0), run.folder, force=True, tensorboard=True)
    assert {f.name: f.read_bytes() for f in run.folder.iterdir() if f.is_file()} == before


def test_tensorboard_forgets_what_a_killed_process_wrote(tmp_path):
    """Killed before a checkpoint, training begins anew; the old points are not shown."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    config = replace(SMALL, log_every=1)
    with pytest.raises(Killed):
        train(config, tmp_path / "run", tensorboard=True, callback=killed_at(2))
    train(config, tmp_path / "run", tensorboard=True, resume=True)
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    assert [event.step for event in events.Scalars("train/loss")] == list(range(1, 13))
