"""Starting from another run: first only the similarity, then everything."""

from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from support.command import nsl, one_line
from support.killing import Killed, killed_at
from support.train_runs import SMALL, assert_same_run
from torch import nn

import neural_similarity as ns
from neural_similarity.fewshot import FewShotConfig, train_method
from neural_similarity.models import register_model, registry
from neural_similarity.train import Run, World, train
from neural_similarity.train import build as build_module
from neural_similarity.train.start import begin_with
from neural_similarity.train.task import Classification


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A trained network without a similarity."""
    return train(replace(SMALL, epochs=1.0), tmp_path_factory.mktemp("from") / "plain")


def weights(run):
    return load_file(run.folder / "last.safetensors")


def backbone(tensors):
    """Weights and statistics of the backbone, by their stock names."""
    stock = {
        name.replace("parametrizations.weight.original", "weight"): tensor
        for name, tensor in tensors.items()
        if "predictor" not in name and ".numbers." not in name
    }
    return {name: tensor for name, tensor in stock.items() if "similarit" not in name}


@pytest.mark.parametrize("kind", ["static", "dynamic"])
def test_first_the_similarity_alone_then_everything(plain, tmp_path, kind):
    """Three epochs of four steps: the backbone rests for one epoch and a half."""
    config = replace(
        SMALL, similarity=kind, from_run=str(plain.folder), similarity_epochs=1.5, lr=0.01
    )
    before = weights(plain)
    frozen = replace(config, checkpoint_minutes=0.0)
    with pytest.raises(Killed):
        train(frozen, tmp_path / kind, callback=killed_at(7))
    first = weights(Run.open(tmp_path / kind))  # after six steps
    same = backbone(first)
    assert same.keys() == before.keys()
    assert all(torch.equal(same[name], before[name]) for name in before)
    start = Classification(config, World()).model.state_dict()
    learned = [name for name in start if not torch.equal(first[name], start[name])]
    assert learned
    assert not backbone({name: start[name] for name in learned})
    resumed = train(None, tmp_path / kind, resume=True)
    after = backbone(weights(resumed))
    changed = {name for name in before if not torch.equal(after[name], before[name])}
    assert changed == before.keys(), "weights and statistics of every layer"
    if kind == "dynamic":
        assert_same_run(train(config, tmp_path / "whole"), resumed)


def test_a_run_begins_with_the_other_network(plain):
    for kind in ("none", "static", "dynamic"):
        config = replace(SMALL, similarity=kind, from_run=str(plain.folder))
        task = Classification(config, World())
        images = plain.example(8)
        torch.testing.assert_close(task.model.eval()(images), plain.load_model()(images))
        assert task.data.mean == plain.normalisation()[0]
        assert not task.new_classifier


def test_other_classes_get_a_new_classifier(plain, monkeypatch):
    monkeypatch.setattr(Run, "classes", lambda self: tuple("abcdefghij"))
    config = replace(SMALL, similarity="static", from_run=str(plain.folder))
    task = Classification(replace(config, seed=5), World())
    theirs = plain.load_model().state_dict()
    assert task.new_classifier
    assert not torch.equal(task.model.classifier.weight, theirs["classifier.weight"])
    assert torch.equal(task.model.hidden[0].weight, theirs["hidden.0.weight"])
    task.freeze(True)
    trained = {name for name, p in task.model.named_parameters() if p.requires_grad}
    assert {name for name in trained if ".numbers." not in name} == {
        "classifier.weight",
        "classifier.bias",
    }
    task.freeze(False)
    assert all(p.requires_grad for p in task.model.parameters())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"options": {"width": 6}}, r"expected options \{'width': 6\}, got \{'width': 4,"),
        ({"pixels": "raw"}, "expected pixels 'raw', got 'normalised'. The trained network cannot"),
        ({"norm_eps": 0.1}, "expected norm_eps 0.1, got None"),
        ({"image_size": 16}, "expected a network for images of 1 channel.* and side 16, as in"),
        (
            {"validation": 0.2, "seed": 5},
            r"expected the division into training and validation images .*\(validation 0, seed \d\)"
            r", got another one \(validation 0\.2, seed 5\)",
        ),
    ],
)
def test_networks_that_do_not_fit(plain, settings, message):
    config = replace(SMALL, from_run=str(plain.folder), **settings)
    with pytest.raises(ns.RunError, match=message):
        Classification(config, World())


def test_the_same_division_is_no_leak(tmp_path):
    """With another seed, most validation images would be training images of the first run."""
    held_out = replace(SMALL, validation=0.2, epochs=1.0)
    first = train(held_out, tmp_path / "first")
    Classification(replace(held_out, from_run=str(first.folder)), World())
    with pytest.raises(ns.RunError, match="It was trained on images that would be validation im"):
        Classification(replace(held_out, from_run=str(first.folder), seed=5), World())


def test_a_network_for_grey_images_is_refused_for_colour(plain, monkeypatch):
    grey = build_module.load_dataset

    def in_colour(*arguments, **options):
        images = grey(*arguments, **options)
        return replace(images, images=images.images.expand(-1, 3, -1, -1).contiguous())

    monkeypatch.setattr(build_module, "load_dataset", in_colour)
    with pytest.raises(ns.RunError, match=r"expected a network for images of 3 channel\(s\)"):
        Classification(replace(SMALL, from_run=str(plain.folder)), World())


def test_settings_that_do_not_go_together():
    with pytest.raises(ns.RunError, match="expected from_run with similarity_epochs, got none"):
        replace(SMALL, similarity="static", similarity_epochs=1.0)
    with pytest.raises(ns.RunError, match="expected a similarity with similarity_epochs, got none"):
        replace(SMALL, from_run="x", similarity_epochs=1.0)


def test_the_similarity_alone_cannot_train_longer_than_everything(plain):
    longest = replace(SMALL, similarity="static", from_run=str(plain.folder), epochs=2.0)
    Classification(replace(longest, similarity_epochs=2.0), World())
    with pytest.raises(ns.RunError, match=r"longer than training \(8 steps\), got 3 \(12 steps\)"):
        Classification(replace(longest, similarity_epochs=3.0), World())


def test_a_recipe_knows_the_network_that_training_starts_from(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    small = ("--set", "options.width=4", "--set", "options.hidden=8", "--threads", 1)
    ends = ("--recipe", "authors", "--steps", 2, "--batch-size", 314)
    unconstrained = ("--similarity", "static", "--structure", "unconstrained")
    image = ("--similarity", "dynamic", "--set", "predictor=image", "--set", "hidden=2")
    for name, kind in (("static", unconstrained), ("image", image)):
        first = nsl(capsys, monkeypatch, "train", *kind, *small, *ends, "--out", name)
        assert first.code == 0, first.err
        words = ("train", "--from", name, *ends, "--threads", 1, "--out", f"{name}-again")
        again = nsl(capsys, monkeypatch, *words)
        assert again.code == 0, again.err
        assert nsl(capsys, monkeypatch, *words, "--resume").code == 0
        for folder in (name, f"{name}-again"):  # without --from: the run knows its network
            assert nsl(capsys, monkeypatch, "train", *ends, "--resume", "--out", folder).code == 0
        configs = [Run.open(tmp_path / folder).config for folder in (name, f"{name}-again")]
        assert configs[1] == replace(configs[0], from_run=str(tmp_path / name))
    # Options that are given change nothing else, and must be those of the trained network.
    words = ("--set", "options.width=8", *ends, "--out", "wider")
    wider = nsl(capsys, monkeypatch, "train", "--from", "static", *words)
    assert "got {'width': 4, 'hidden': 8}" in one_line(wider)
    assert "expected options {'width': 8, 'hidden': 8}" in one_line(wider)
    # What the source leaves open comes from the recipe.
    plain_run = nsl(capsys, monkeypatch, "train", "--steps", 2, *small, "--out", "plain")
    assert plain_run.code == 0, plain_run.err
    done = nsl(capsys, monkeypatch, "train", "--from", "plain", *unconstrained, *ends, "--out", "x")
    assert done.code == 0, done.err
    config = Run.open(tmp_path / "x").config
    assert (config.padding, config.similarity_decay) == ("mirror", None)
    assert config.pixels == Run.open(tmp_path / "plain").config.pixels


def test_the_command_takes_network_and_data_from_the_other_run(
    plain, capsys, monkeypatch, tmp_path
):
    monkeypatch.chdir(plain.folder.parent)
    stages = ("--similarity-epochs", 1, "--steps", 5, "--batch-size", 314, "--threads", 1)
    words = ("train", "--from", plain.folder.name, "--similarity", "static", *stages)
    done = nsl(capsys, monkeypatch, *words, "--out", tmp_path / "run")
    assert done.code == 0, done.err
    config = Run.open(tmp_path / "run").config
    assert (config.options, config.from_run) == (plain.config.options, str(plain.folder))
    assert config.similarity_epochs == 1
    monkeypatch.chdir(tmp_path)
    assert nsl(capsys, monkeypatch, "train", "--resume", "--out", "run").code == 0
    wrong = nsl(capsys, monkeypatch, "train", "--from", "run", "--similarity", "dynamic")
    assert "expected a network with similarity 'dynamic' or without one" in one_line(wrong)
    missing = nsl(capsys, monkeypatch, "train", "--from", "nothing")
    assert "expected the folder of a run, got none" in one_line(missing)


def test_the_classifier_of_a_network_of_ones_own_must_be_known(plain, monkeypatch, tmp_path):
    monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))

    def make(num_classes, in_channels, image_size):
        return nn.Sequential(nn.Flatten(), nn.Linear(in_channels * image_size**2, num_classes))

    register_model("flat", make)
    source = train(replace(SMALL, model="flat", options={}), tmp_path / "flat")
    with pytest.raises(ns.RunError, match=r"expected a network with get_classifier\(\).*'flat'"):
        begin_with(make(3, 1, 8), source, ("a", "b", "c"))
    proto = FewShotConfig(data="glyphs", image_size=8, model="flat", steps=1, epoch_steps=1)
    with pytest.raises(ns.RunError, match=r"fewshot: expected a network with get_classifier\(\)"):
        train_method(proto, tmp_path / "proto")
