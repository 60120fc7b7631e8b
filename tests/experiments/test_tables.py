"""The rows of the tables are what their titles, budgets and notes say."""

import re

import pytest
import torch

import neural_similarity as ns
from experiments.tables import BUDGETS, TABLES, OneStep
from experiments.tables import find_table as table
from neural_similarity.fewshot import list_methods
from neural_similarity.train import build_model, recipe_settings

CLASSES = {"cifar10": 10, "cifar100": 100, "imagenet": 1000, "digits": 10}


def parameters(row, budget):
    config = row.config(budget)
    sides = {"imagenet": 224}
    if isinstance(config, OneStep):
        config = config.config
    model = build_model(config, CLASSES[config.data], 3, sides.get(config.data, 32))
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("name", TABLES)
def test_configurations_differ(name, budget):
    rows = table(name).at(budget).rows
    assert bool(rows) == (budget in table(name).budgets)
    configs = [row.config(budget, 3) for row in rows]
    assert all(config.seed == 3 for config in configs)
    for number, config in enumerate(configs):
        assert config not in configs[:number]
    assert set(table(name).paper) | {table(name).baseline} <= {r.name for r in table(name).rows}


@pytest.mark.parametrize("budget", ["short", "paper"])
@pytest.mark.parametrize("name", ["table4", "table4-cifar100"])
def test_the_larger_baseline_has_more_parameters_than_every_row(name, budget):
    counts = {row.name: parameters(row, budget) for row in table(name).at(budget).rows}
    plus = counts.pop("cnn-plus")
    assert "except the dynamic filter network" in table(name).row("cnn-plus").deviation
    assert counts.pop("dynamic-filter-network") > plus
    assert counts.pop("cnn-plus-lower-rate") == plus
    assert max(counts.values()) < plus < 1.05 * max(counts.values())


@pytest.mark.parametrize("budget", ["short", "paper"])
@pytest.mark.parametrize("name", ["table6", "table6-mini"])
def test_rows_see_the_same_number_of_images(name, budget):
    """Except rows that train through gradient steps or start from another row's network."""
    seen = {}
    base = {"train": 64 * 600, "train+val": 80 * 600}
    starts = table(name).starts(budget)
    for row in table(name).at(budget).rows:
        config = row.config(budget)
        if config.epochs and config.steps is None and starts[row.name] is None:
            images = base[config.base]
            if config.build_method().trains_on != "images":
                way, shot, query = config.training_episode()
                images = config.epoch_steps * config.tasks * way * (shot + query)
            if config.build_method().trains_on == "both":
                assert images == config.epoch_steps * config.batch_size
            seen[row.name] = images * config.epochs
    assert len(seen) > 2
    assert len(set(seen.values())) == 1, seen
    if budget == "short":
        assert f"({seen['finetune']:,.0f} images: " in table(name).budgets["short"]
        assert f"{seen['finetune'] / 128:,.0f} steps of 128" in table(name).budgets["short"]
        assert f"{seen['proto'] / 400:,.0f} " in table(name).budgets["short"]


def test_long_rows_are_as_the_words_of_their_budget_say():
    names = set(list_methods()) & {"proto", "maml", "relation", "matching", "r2d2", "baseline_pp"}
    rows = table("table6").at("long").rows
    words = table("table6").budgets["long"]
    for row in rows:
        config = row.config("long")
        names.discard(config.method)
        assert config.options["width"] == (32 if config.method == "maml" else 64)
        on_images = config.build_method().trains_on == "images"
        assert config.patience == (10 if on_images else None)
        assert config.schedule == ("halving" if on_images else "cosine")
        assert config.learning_rate == (0.005 if config.method == "r2d2" else 0.001)
        validations = config.epochs
        if config.steps is not None:
            assert f"{config.steps * config.tasks:,}" in words
            validations = config.steps / config.epoch_steps
        elif config.epochs:
            assert f"{config.epochs:g} epochs" in words
        assert validations in (0, 20, 40, 80)
        assert (config.n_shot, config.train_shot) == (1 if "one-shot" in row.name else 5, None)
        assert ("Transductive" in row.deviation) == (config.batch_norm == "batch")
    assert not names
    assert table("table6").published.keys() <= {row.name for row in rows}


def test_the_longer_look_at_classification():
    rows = {row.name: row for row in table("table4").at("long").rows}
    assert list(rows) == ["cnn", "static-diagonal", "dynamic-diagonal", "image-both"]
    configs = {name: row.config("long") for name, row in rows.items()}
    assert all((of.epochs, of.lr, of.options) == (15, 0.03, {}) for of in configs.values())
    assert parameters(rows["cnn"], "long") == parameters(rows["cnn"], "paper")
    assert configs["dynamic-diagonal"].hidden == 16
    winner = configs["image-both"]
    assert (winner.predictor, winner.over, winner.hidden) == ("image", "both", 8)
    assert not table("table3").at("long").rows  # it shares rows with Table 4


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("name", ["table6", "table6-mini"])
def test_a_row_does_not_repeat_what_its_method_starts_from(name, budget):
    starts = table(name).starts(budget)
    for row in table(name).at(budget).rows:
        method = row.config(budget).build_method()
        if method.starts_from is not None:
            assert row.starts_from is None
            assert table(name).row(starts[row.name]).config(budget).method == method.starts_from


@pytest.mark.parametrize("name", ["table6", "table6-mini"])
def test_rows_have_the_tasks_and_statistics_of_their_notes(name):
    tasks = {}
    for row in table(name).at("short").rows:
        config = row.config("short")
        assert ("Transductive" in row.deviation) == (
            config.build_method().inference == "transductive"
        )
        if match := re.search(r"budget (\d+) tasks|(\d+) tasks at the short budget", row.deviation):
            tasks[row.name] = int(match[1] or match[2])
        assert tasks.get(row.name) == (config.steps and config.steps * config.tasks)
    assert {"maml", "meta-static"} <= tasks.keys()
    notes = " ".join(table(name).notes_at("short"))
    assert all(f"{count}" in notes for count in tasks.values())
    static = table(name).row("static").config("short")
    usual = table(name).row("finetune").config("short").episodes
    assert f"first {static.episodes} of the {usual} episodes" in notes
    assert f"on {static.episodes} episodes" in table(name).row("static").deviation


@pytest.mark.parametrize("budget", ["smoke", "short", "paper"])
@pytest.mark.parametrize(
    "name",
    ["nearest", "linear", "laplace", "simpleshot", "bd-cspn", "laplacianshot", "pt-map", "tim"],
)
def test_rows_that_only_test_the_baselines_network(name, budget):
    config = table("table6").row(name).config(budget)
    assert (config.method, config.epochs, config.steps) == (name.replace("-", "_"), 0, None)
    assert table("table6").starts(budget)[name] == "finetune"
    baseline = table("table6").row("finetune").config(budget)
    assert (config.options, config.data, config.episodes) == (
        baseline.options, baseline.data, baseline.episodes,
    )  # fmt: skip


def test_the_note_on_episodes_after_a_trained_network():
    row = table("table6").row("proto-pretrained")
    config = row.config("short")
    assert f"here {config.epochs * config.epoch_steps:.0f} episodes follow" in row.deviation


def test_every_method_has_a_row():
    """`ridge` is the row of R2D2; the method of that name is the classifier of another study."""
    methods = {row.config("short").method for row in table("table6").at("short").rows}
    assert set(list_methods()) - methods == {"ridge"}


def test_the_notes_on_leo_and_feat():
    for budget, tasks, episodes in (("short", 4, "1,152"), ("paper", 12, "19,200")):
        row = table("table6").row("leo")
        config = row.config(budget)
        assert (config.tasks, row.config("smoke").tasks) == (tasks, 1)
        usual = table("table6").row("finetune").config(budget)
        images = config.epoch_steps * tasks * 100 * config.epochs
        assert images == {"train": 64 * 600, "train+val": 80 * 600}[usual.base] * usual.epochs
        assert re.search(rf"{tasks} (episodes|at the paper)", row.deviation)
        feat = table("table6").row("feat").config(budget)
        assert f"{feat.epochs * feat.epoch_steps:,.0f}" == episodes
        assert episodes in table("table6").row("feat").deviation


@pytest.mark.parametrize(
    ("name", "row", "recipe"),
    [
        ("table4", "cnn-recipe", "authors"),
        ("table4-cifar100", "dynamic-recipe", "authors"),
        ("table7", "spherenet-attention-recipe", "authors-attention"),
    ],
)
def test_rows_with_the_recipe_of_the_authors(name, row, recipe):
    at_length = table(name).row(row).config("paper")
    settings = recipe_settings(recipe, {"model": at_length.model})
    assert {setting: getattr(at_length, setting) for setting in settings} == settings
    short = table(name).row(row).config("short")
    assert (short.steps, short.epochs) == (None, table(name).row("cnn").config("short").epochs)
    assert short.schedule == settings["schedule"]
    assert short.options.items() >= table(name).row("cnn").config("short").options.items()


def test_rows_of_what_shares_one_similarity():
    scopes = {"static-diagonal": "layer", "static-channel": "channel", "static-kernel": "kernel"}
    for name, scope in scopes.items():
        config = table("table4").row(name).config("short")
        assert (config.similarity, config.structure, config.scope) == ("static", "diagonal", scope)
    for name, groups in {"dynamic-kernel": 1, "dynamic-filter-network": None}.items():
        config = table("table4").row(name).config("short")
        assert (config.over, config.similarity_groups, config.predictor, config.hidden) == (
            "kernels", groups, "image", 8,
        )  # fmt: skip
    network = build_model(config, 10, 3, 32)
    entries = sum(
        config.batch_size * side**2 * layer.weight.numel()  # at every position
        for stage, side in zip(network.stages, (32, 16, 8), strict=True)
        for layer in stage
        if isinstance(layer, ns.nn.DynamicConv2d)
    )
    assert f"{entries * 4 / 1e9:.1f} GB" in table("table4").row(name).deviation


def test_a_row_whose_similarity_is_the_prediction_itself():
    config = table("table4").row("dynamic-unconstrained-bare").config("smoke")
    network = build_model(config, 10, 3, 32).eval()
    layer = network.stages[1][0]
    assert layer.similarity(torch.zeros(1, layer.in_channels, 8, 8)).abs().max() == 0
    usual = table("table4").row("dynamic-unconstrained").config("smoke")
    layer = build_model(usual, 10, 3, 32).eval().stages[1][0]
    M = layer.similarity(torch.zeros(1, layer.in_channels, 8, 8))
    assert torch.equal(M[0, :, :, 0, 0], torch.eye(9))


def test_imagenet_is_augmented_as_by_krizhevsky():
    assert all(r.config("paper").augmentation == "krizhevsky" for r in table("table5").rows)
    assert table("table5").top5.keys() == table("table5").paper.keys()


def test_imagenet_networks_have_the_papers_parameters():
    for name, millions in table("table5").sizes.items():
        assert round(parameters(table("table5").row(name), "paper") / 1e6, 2) == millions


def test_the_widened_network_has_as_many_parameters_as_the_dynamic_one():
    for budget in ("smoke", "short", "paper"):
        wide = table("table6").row("wide-parameters").config(budget)
        dynamic = table("table6").row("dynamic").config(budget)
        predictor = ns.SpherePredictor(hidden=dynamic.hidden)
        similarity = ns.DynamicSimilarity("diagonal", predictor)
        aim = features(ns.create_model("cnn4", 5, similarity=similarity, **dynamic.options))
        width = wide.options["width"]
        assert features(ns.create_model("cnn4", 5, width=width)) >= aim
        assert features(ns.create_model("cnn4", 5, width=width - 1)) < aim


def features(model):
    return sum(p.numel() for name, p in model.named_parameters() if "classifier" not in name)
