"""The mathematics behind experiments/theory, at reduced sizes; and its README is up to date."""

import importlib
import json
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import nn

from experiments.theory import (
    experiment,
    gradient_flow,
    higher_order,
    implicit_regularisation,
    ode,
    self_recurrence,
)
from experiments.theory.__main__ import EXPERIMENTS

FOLDER = Path(__file__).parents[2] / "experiments" / "theory"
NAMES = [module.__name__.rpartition(".")[2] for module in EXPERIMENTS]


@pytest.mark.parametrize("seed", range(3))
def test_equation_6_is_autograd(seed):
    differences = gradient_flow.compare(seed)
    wrong = {name for name in differences if name.startswith("mistake") or "literally" in name}
    assert len(wrong) == 3
    for name, difference in differences.items():
        assert (difference > 1e-3) if name in wrong else (difference < 1e-13), name


def test_the_flow_conserves_the_balance_of_its_factors():
    coarse = gradient_flow.follow(0.4, steps=400)["balance_drift"]
    fine = gradient_flow.follow(0.4, steps=800)["balance_drift"]
    assert fine < coarse / 8  # Runge and Kutta's error, of fourth order, and nothing else
    assert fine < 1e-5


def test_effective_rank_counts_equal_singular_values():
    spectrum = implicit_regularisation.spectrum(torch.diag(torch.tensor([3.0, 3.0, 3.0, 0.0])))
    assert spectrum["effective rank"] == pytest.approx(3)
    assert spectrum["nuclear norm"] == pytest.approx(9)


@pytest.mark.parametrize("task", implicit_regularisation.TASKS)
def test_all_factorisations_start_at_the_same_matrix(task):
    problems = [implicit_regularisation.problem(task, seed) for seed in range(2)]
    parts = [torch.stack(part) for part in zip(*problems, strict=True)]
    runs = [
        implicit_regularisation.descend(method, *parts, steps=20)
        for method in implicit_regularisation.METHODS
    ]
    for run in runs:
        assert run["nuclear norm"][0] == pytest.approx(runs[0]["nuclear norm"][0])
        assert sum(run["loss"][-1]) < sum(run["loss"][0])


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_differences_vanish_above_the_degree_and_not_below(layers):
    sizes = higher_order.differences(higher_order.stack(layers).double())
    assert min(sizes[: 2**layers]) > 1e-6
    assert max(sizes[2**layers :]) < 1e-13
    assert higher_order.degree(sizes) == 2**layers


def test_a_linear_predictor_fits_a_quadratic_and_a_linear_layer_does_not():
    dynamic, linear = (
        higher_order.fit(name, seed=0, iterations=60) for name in ("dynamic, M = T x + I", "linear")
    )
    assert dynamic["inside"] > 0.999
    assert linear["inside"] < 0.9
    assert dynamic["growth"] == pytest.approx(2, abs=0.01)


def test_a_sphere_predictor_bends_but_grows_linearly():
    layer = higher_order.FUNCTIONS["dynamic, M = SphereNet(x) + I"]().double()
    nn.init.normal_(layer.predictor.network.last.weight)
    assert higher_order.degree(higher_order.differences(layer)) is None
    assert higher_order.growth(layer) == pytest.approx(1, abs=1e-6)


def test_a_similarity_layer_is_an_euler_step():
    assert ode.step_difference() < 1e-13


@pytest.mark.parametrize(
    ("scope", "most"), [("full", 12), ("kernel", 9), ("channel", 9), ("layer", 3)]
)
def test_where_a_centre_picking_similarity_exists(scope, most):
    assert ode.residual(scope, most) < 1e-10
    if scope != "full":
        assert ode.residual(scope, most + 1) > 0.01


def test_kernels_that_depend_on_each_other_have_no_centre_picking_similarity():
    weight = ode.kernels(3)
    weight[2] = weight[0] - weight[1]
    similarity = ode.similarity_for(weight, ode.centre(3))
    picked = (weight.flatten(1) @ similarity).reshape(weight.shape)
    assert (picked - ode.centre(3)).norm() > 0.1


def test_the_iterated_layer_converges_with_first_order():
    errors = ode.converge(halvings=5)["errors"]
    ratios = [a / b for a, b in pairwise(errors)]
    assert all(1.9 < ratio < 2.2 for ratio in ratios)
    assert abs(ratios[-1] - 2) < 0.05


def test_recurrence_shares_its_parameters():
    recurrent, plain, stack, narrow = self_recurrence.METHODS
    for method in (recurrent, plain):
        sizes = {self_recurrence.count(self_recurrence.build(method, d)) for d in (1, 2, 4)}
        assert len(sizes) == 1
    shared = self_recurrence.count(self_recurrence.build(recurrent, 4))
    assert self_recurrence.count(self_recurrence.build(stack, 4)) > 2 * shared
    assert self_recurrence.count(self_recurrence.build(narrow, 4)) <= shared


def test_recurrence_applies_its_layer_depth_times():
    model = self_recurrence.build(self_recurrence.METHODS[0], 3)
    calls = []
    model.layers[0].register_forward_hook(lambda *_: calls.append(1))
    model(torch.rand(2, 1, 8, 8))
    assert len(calls) == 3


def test_intervals_are_students():
    mean, half = experiment.interval([1.0, 2.0, 3.0])
    assert mean == 2
    assert half == pytest.approx(4.303 / 3**0.5)


def test_the_command_runs_every_module_that_measures():
    stems = {file.stem for file in FOLDER.glob("*.py")}
    modules = {stem: importlib.import_module(f"experiments.theory.{stem}") for stem in stems}
    assert {stem for stem, module in modules.items() if hasattr(module, "measure")} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_the_readme_quotes_the_committed_numbers(name):
    module = importlib.import_module(f"experiments.theory.{name}")
    numbers = json.loads((FOLDER / "pictures" / f"{name}.json").read_text())
    readme = (FOLDER / "README.md").read_text()
    assert experiment.show(module, numbers) in readme
    assert f"pictures/{name}.png" in readme
    assert (FOLDER / "pictures" / f"{name}.png").stat().st_size < 100_000


def test_the_command_writes_numbers_and_a_picture(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["ode", "--out", str(tmp_path)])
    experiment.run(ode)
    assert "first order" in " ".join(capsys.readouterr().out.split())
    assert json.loads((tmp_path / "ode.json").read_text())["experiment"] == "ode"
    assert (tmp_path / "ode.png").stat().st_size > 1000


def test_the_command_refuses_no_seeds(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["higher_order", "--seeds", "0"])
    with pytest.raises(SystemExit, match="2"):
        experiment.run(higher_order)
    assert "at least 1, got '0'" in capsys.readouterr().err
