"""Recipes, and each of their ingredients against a case worked out by hand."""

import json
from dataclasses import replace
from math import log

import pytest
import torch
import torch.nn.functional as F
from support.command import nsl, one_line
from support.killing import Killed, killed_at
from support.train_runs import SMALL, assert_same_run
from torch import nn

import neural_similarity as ns
from neural_similarity.data import Augment
from neural_similarity.train import (
    Run,
    TrainConfig,
    World,
    build_model,
    build_optimizer,
    recipe_settings,
    train,
)
from neural_similarity.train.build import build_data, training_augment
from neural_similarity.train.ingredients.losses import classification_loss
from neural_similarity.train.ingredients.recipes import RECIPES, with_recipe
from neural_similarity.train.ingredients.schedules import SCHEDULES
from neural_similarity.train.task import Classification

TINY = ("--set", "options.width=4", "--set", "options.hidden=8", "--set", "hidden=4")


def test_the_bounded_loss_by_hand():
    # Softmax 1/4 and 3/4; the label is the first class, a tenth of it spread over both.
    scores, labels = torch.tensor([[0.0, log(3.0)]]), torch.tensor([0])
    expected = -(0.95 * log(0.25 + 0.05) + 0.05 * log(0.75 + 0.05))
    assert classification_loss(scores, labels, 0.1, 0.05).item() == pytest.approx(expected)
    many, targets = torch.randn(7, 5), torch.randint(5, (7,))
    plain = F.cross_entropy(many, targets, label_smoothing=0.1)
    assert torch.equal(classification_loss(many, targets, 0.1), plain)
    torch.testing.assert_close(classification_loss(many, targets, 0.1, 1e-12), plain)


def test_a_hopeless_image_costs_no_more_than_the_bound():
    scores = torch.tensor([[0.0, 500.0]], requires_grad=True)
    loss = classification_loss(scores, torch.tensor([0]), floor=1e-4)
    loss.backward()
    assert loss.item() == pytest.approx(-log(1e-4))
    assert scores.grad.abs().max() == 0


def test_the_steps_at_which_the_learning_rate_drops():
    drops = {"authors": (42_500, [20_000, 30_000, 37_500]), "paper": (64_000, [34_000, 54_000])}
    for name, (total, steps) in drops.items():
        rates = [SCHEDULES[name](step / total) for step in range(total)]
        assert [s for s in range(1, total) if rates[s] != rates[s - 1]] == steps
        assert rates[-1] == pytest.approx(0.1 ** len(steps))


def test_which_pixels_the_network_gets():
    def extremes(pixels):
        data = build_data(replace(SMALL, pixels=pixels, augmentation="none"), World())
        images = torch.cat([images for images, _ in data.test.epoch(0)])
        return images.min().item(), images.max().item(), data

    digits = ns.data.load_dataset("digits", "test").images
    low, high = digits.min().item(), digits.max().item()
    raw = extremes("raw")
    assert raw[:2] == pytest.approx((low, high))
    assert raw[2].facts()["std"] == [1 / 255]
    assert extremes("centred")[:2] == pytest.approx(((low - 127.5) / 128, (high - 127.5) / 128))
    assert extremes("normalised")[2].mean == ns.data.load_dataset("digits").statistics()[0]


@pytest.mark.parametrize(
    ("settings", "augment"),
    [
        ({}, Augment(crop=1, flip=False)),
        ({"padding": "mirror"}, Augment(crop=1, flip=False, padding="mirror")),
        ({"augmentation": "flip"}, Augment(crop=0, flip=True)),
        ({"augmentation": "none", "color_noise": 0.3}, Augment(0, False, color_noise=0.3)),
        ({"augmentation": "krizhevsky"}, Augment(0, square_crop=True, color_noise=0.1)),
        ({"augmentation": "krizhevsky", "color_noise": 0.0}, Augment(0, square_crop=True)),
    ],
)
def test_augmentations(settings, augment):
    assert training_augment(replace(SMALL, **settings)) == augment


def decays(config):
    model = build_model(config, 10, 1, 8)
    names = {p: name for name, p in model.named_parameters()}
    groups = build_optimizer(config, model).param_groups
    return {names[p]: group["weight_decay"] for group in groups for p in group["params"]}, model


def test_batch_norm_decays_by_itself():
    found, model = decays(replace(SMALL, similarity="dynamic", norm_decay=3e-4))
    norms = {
        f"{name}.{part}"
        for name, module in model.named_modules()
        if isinstance(module, nn.BatchNorm2d)
        for part in ("weight", "bias")
    }
    assert any("predictor" in name for name in norms)
    for name, decay in found.items():
        weight = model.get_parameter(name).dim() > 1
        assert decay == (3e-4 if name in norms else 5e-4 if weight else 0.0), name


@pytest.mark.parametrize("similarity", ["none", "static", "dynamic"])
def test_filters_decay_by_themselves(similarity):
    options = {"widths": [8, 8, 8], "hidden": 8, "attention": [1]}
    config = replace(SMALL, model="cnn9_wide", options=options, similarity=similarity)
    found, _ = decays(replace(config, filter_decay=0.0, similarity_decay=1e-3))
    decaying = {name for name, decay in found.items() if decay == 5e-4}
    apart = {name for name in decaying if "predictor" not in name}
    assert apart == {"classifier.weight"} | {
        name for name in found if name.rpartition(".")[0].endswith(("query", "key", "value"))
    }
    assert len(apart) == 4


def test_batch_norm_as_in_the_settings():
    config = replace(SMALL, similarity="dynamic")
    settings = {"norm_momentum": 0.02, "norm_eps": 1e-3, "norm_start": "zero"}
    for momentum, expected in ((None, 0.02), (0.001, 0.001)):
        model = build_model(replace(config, **settings, predictor_momentum=momentum), 10, 1, 8)
        for name, norm in model.named_modules():
            if isinstance(norm, nn.BatchNorm2d):
                assert norm.momentum == (expected if "predictor" in name else 0.02), name
                assert norm.eps == 1e-3
                assert not norm.running_var.any()
    plain = next(m for m in build_model(config, 10, 1, 8).modules() if hasattr(m, "running_var"))
    assert (plain.momentum, plain.eps, plain.running_var.min()) == (0.1, 1e-5, 1)


def test_an_l1_penalty_reaches_predicted_similarities():
    """Nine layers whose M is the identity, nine ones each."""
    labels, images = torch.tensor([0, 1]), torch.randn(2, 1, 8, 8)
    for kind in ("static", "dynamic"):
        losses = []
        for l1 in (0.0, 0.01):
            task = Classification(replace(SMALL, similarity=kind, similarity_l1=l1), World())
            loss, _ = task.network()(images, labels)
            losses.append(loss.item())
        assert losses[1] - losses[0] == pytest.approx(0.01 * 81, rel=1e-4)
        loss.backward()
        assert all(p.grad is not None for p in ns.similarity_parameters(task.model))
    with pytest.raises(ns.RunError, match="expected a similarity with similarity_l1, got none"):
        TrainConfig(similarity_l1=0.1)


def test_the_recipe_of_the_authors():
    settings = recipe_settings("authors", {})
    assert settings == {
        "batch_size": 128, "optimizer": "sgd", "lr": 0.1, "momentum": 0.9, "weight_decay": 5e-4,
        "steps": 42_500, "schedule": "authors", "label_smoothing": 0.01, "loss_floor": 1e-4,
        "augmentation": "usual", "padding": "mirror", "pixels": "raw", "norm_decay": 5e-4,
        "norm_momentum": 0.001, "norm_eps": 1e-3, "norm_start": "zero",
        "predictor_momentum": 0.001, "similarity_decay": 0.0,
        "predictor_options": {"start": "authors"},
    }  # fmt: skip
    usual = training_augment(TrainConfig.from_dict({**settings, "data": "cifar10"}))
    assert (usual.crop, usual.flip) == (4, True)
    # An unconstrained static M decays at 0.005, which is the default.
    found, model = decays(
        TrainConfig.from_dict(
            with_recipe("authors", {"similarity": "static", "structure": "unconstrained"})
        )
    )
    assert {d for name, d in found.items() if ".numbers." in name} == {5e-3}
    assert {found[name] for name, p in model.named_parameters() if "numbers" not in name} == {
        5e-4, 0.0,
    }  # fmt: skip
    assert [name for name, d in found.items() if d == 0] == ["hidden.0.bias", "classifier.bias"]
    pixel = recipe_settings("authors", {"predictor": "pixel"})
    assert "predictor_options" not in pixel  # it has no such start


def test_the_recipe_of_the_table_with_self_attention():
    settings = recipe_settings("authors-attention", {})
    expected = {
        "model": "spherenet9_attention", "optimizer": "adam", "lr": 1e-3, "steps": 64_000,
        "schedule": "paper", "augmentation": "flip", "filter_decay": 0.0, "norm_eps": 1e-3,
        "filter_orthogonality": 2e-4, "loss_floor": 1e-4, "pixels": "centred",
        "options": {"attention": [1, 2], "query_relu": True, "classifier_bias": False},
    }  # fmt: skip
    assert {name: settings[name] for name in expected} == expected
    plain = recipe_settings("authors-attention", {"model": "spherenet9"})
    assert plain["options"] == {"classifier_bias": False}
    small = {"options": {"widths": [8, 8, 8], "hidden": 8}}
    config = TrainConfig.from_dict(with_recipe("authors-attention", small))
    model = build_model(config, 10, 3, 32)
    assert model.classifier.bias is None
    attention = [m for m in model.modules() if isinstance(m, ns.nn.SelfAttention2d)]
    assert len(attention) == 2
    image = torch.randn(1, 8, 16, 16)
    query = attention[0].query(image).relu().flatten(2)
    scores = query.mT @ attention[0].key(image).flatten(2)
    torch.testing.assert_close(attention[0].similarity(image), scores.softmax(-1))
    with torch.no_grad():
        attention[0].gain.fill_(1.0)
        mixed = attention[0].value(image).flatten(2) @ scores.softmax(-1).mT
        torch.testing.assert_close(attention[0](image), image + mixed.view_as(image))


@pytest.mark.parametrize("name", RECIPES)
def test_what_the_user_sets_wins(name):
    chosen = {"lr": 0.02, "epochs": 3.0, "options": {"hidden": 8}, "predictor_options": {}}
    settings = with_recipe(name, chosen)
    assert (settings["lr"], settings["epochs"], settings["options"]["hidden"]) == (0.02, 3.0, 8)
    assert "steps" not in settings, "epochs of the user's count"
    assert with_recipe(name, {"epochs": 3.0, "steps": 7})["steps"] == 7
    TrainConfig.from_dict(settings)


def test_a_killed_run_with_a_recipe_goes_on_to_the_same_bits(tmp_path):
    chosen = {**SMALL.to_dict(), "similarity": "dynamic"}
    names = recipe_settings("authors", {}).keys() - {"batch_size", "lr", "steps"}
    chosen = {name: value for name, value in chosen.items() if name not in names - {"kind"}}
    del chosen["steps"]
    config = TrainConfig.from_dict(with_recipe("authors", chosen))
    assert (config.padding, config.loss_floor, config.epochs) == ("mirror", 1e-4, 3.0)
    whole = train(config, tmp_path / "whole")
    broken = replace(config, checkpoint_minutes=0.0)
    with pytest.raises(Killed):
        train(broken, tmp_path / "broken", callback=killed_at(7))
    assert_same_run(whole, train(None, tmp_path / "broken", resume=True))


def test_old_runs_without_the_new_settings(tmp_path):
    run = train(replace(SMALL, steps=2), tmp_path / "run")
    file = run.folder / "config.json"
    stored = json.loads(file.read_text())
    new = recipe_settings("authors", {}).keys() | {"similarity_l1", "filter_decay", "color_noise"}
    old = {"batch_size", "optimizer", "lr", "momentum", "weight_decay", "steps", "schedule",
           "label_smoothing", "similarity_decay", "predictor_options"}  # fmt: skip
    kept = {name: value for name, value in stored.items() if name not in new - old}
    assert len(kept) == len(stored) - len(new - old)
    file.write_text(json.dumps(kept))
    assert Run.open(run.folder).config == run.config
    train(None, run.folder, resume=True)


def test_recipes_on_the_command_line(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    words = ("--recipe", "authors", "--steps", 2, "--set", "padding=zeros", *TINY)
    done = nsl(capsys, monkeypatch, "train", *words, "--out", "run")
    assert done.code == 0, done.err
    config = Run.open(tmp_path / "run").config
    assert (config.steps, config.padding, config.norm_decay) == (2, "zeros", 5e-4)
    assert config.schedule == "authors"
    resumed = nsl(capsys, monkeypatch, "train", "--resume", "--out", "run")
    assert resumed.code == 0
    wrong = nsl(capsys, monkeypatch, "train", "--recipe", "author", "--out", "other")
    assert "expected recipe to be one of 'authors', 'authors-attention'" in one_line(wrong)
    assert "Did you mean 'authors'" in one_line(wrong)
    assert not (tmp_path / "other").exists()
    text = nsl(capsys, monkeypatch, "train", "--help").out
    assert "--recipe" in text
    assert "authors-attention" in text
