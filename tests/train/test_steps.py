"""What a training step is given, and what it does with it."""

from dataclasses import replace

import pytest
import torch
from support.train_runs import SMALL

import neural_similarity as ns
from neural_similarity.data import Augment, load_dataset, train_loader
from neural_similarity.train import loop, train
from neural_similarity.train.build import build_model
from neural_similarity.train.ingredients.schedules import SCHEDULES


def test_schedules():
    for name, schedule in SCHEDULES.items():
        values = [schedule(step / 1000) for step in range(1000)]
        assert max(values) == pytest.approx(1, abs=0.01), name
        assert min(values) >= 0
    paper = SCHEDULES["paper"]
    for step, share in ((0, 1), (33_999, 1), (34_000, 0.1), (53_999, 0.1), (54_000, 0.01)):
        assert paper(step / 64_000) == pytest.approx(share)
    assert SCHEDULES["onecycle"](0.2) == 1
    assert SCHEDULES["onecycle"](0.999) < 0.01
    assert SCHEDULES["cosine"](0.5) == pytest.approx(0.5)


def values(name, *shares):
    return [SCHEDULES[name](share) for share in shares]


def test_schedules_point_by_point():
    assert values("onecycle", 0, 0.05, 0.1, 0.2, 0.6) == pytest.approx([0, 0.25, 0.5, 1, 0.5])
    assert values("cosine", 0, 1 / 3, 0.5, 2 / 3) == pytest.approx([1, 0.75, 0.5, 0.25])
    assert values("halving", 0, 0.0999, 0.1, 0.55, 0.999) == [1, 1, 0.5, 2**-5, 2**-9]


@pytest.mark.parametrize(
    ("name", "total", "drops"),
    [
        ("paper", 64, (34, 54)),
        ("authors", 42.5, (20, 30, 37.5)),
        ("imagenet", 600, (200, 375, 550)),
    ],
)
def test_rates_drop_to_a_tenth(name, total, drops):
    for number, drop in enumerate(drops):
        around = values(name, (drop - 0.01) / total, (drop + 0.01) / total)
        assert around == pytest.approx([0.1**number, 0.1 ** (number + 1)])
    assert values(name, 0.999) == pytest.approx([0.1 ** len(drops)])


@pytest.fixture
def steps(tmp_path, monkeypatch):
    """Trains; returns each step's images, length of the gradient and layout of the kernels."""
    step = loop._Job.step

    def run_steps(config):
        records = []

        def recorded_step(self, batch, *rest):
            result = step(self, batch, *rest)
            parameters = list(self.task.model.parameters())
            length = torch.stack([p.grad.norm() for p in parameters if p.grad is not None]).norm()
            kernel = next(p for p in parameters if p.dim() == 4 and p.shape[1] > 1)
            layout = kernel.is_contiguous(memory_format=torch.channels_last)
            records.append((batch[0].clone(), length.item(), layout))
            return result

        monkeypatch.setattr(loop._Job, "step", recorded_step)
        train(replace(config, steps=5), tmp_path / str(config.channels_last))
        return zip(*records, strict=True)

    return run_steps


def test_batches_are_augmented_and_in_another_order_every_epoch(steps):
    digits = load_dataset("digits", "train")
    mean, std = digits.statistics()
    augment = Augment(1, flip=False)
    loader = train_loader(digits, 314, augment=augment, mean=mean, std=std, seed=0)
    expected = [images for epoch in range(2) for images, _ in loader.epoch(epoch)]
    images, lengths, layouts = steps(replace(SMALL, grad_clip=0.01))
    assert all(map(torch.equal, images, expected))
    assert lengths == pytest.approx([0.01] * 5, rel=1e-3)
    assert all(layouts)


def test_channels_last_can_be_left_off(steps):
    _, _, layouts = steps(replace(SMALL, channels_last=False))
    assert not any(layouts)


def test_the_penalty_on_filters_is_in_the_loss(tmp_path):
    plain = train(replace(SMALL, steps=1), tmp_path / "plain")
    other = train(replace(SMALL, steps=1, filter_orthogonality=0.1), tmp_path / "other")
    penalty = ns.filter_orthogonality_penalty(build_model(SMALL, 10, 1, 8), 0.1).item()
    losses = [run.metrics()[0]["loss"] for run in (plain, other)]
    assert losses[1] - losses[0] == pytest.approx(penalty, rel=1e-4)


def test_evaluation_every_other_epoch_and_at_the_end(tmp_path):
    run = train(replace(SMALL, eval_every=2), tmp_path / "run")
    assert [line["step"] for line in run.metrics() if line["kind"] == "eval"] == [8, 12]
