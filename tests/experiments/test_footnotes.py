"""The notes below a table of the report."""

import json

import pytest
from support.results_cases import change, keep_error, keep_tests

from experiments.report.footnotes import footnotes
from experiments.report.row_results import outdated, read_table
from experiments.tables import TABLES


@pytest.fixture
def results(tmp_path):
    return tmp_path / "results"


def notes_of(results, name: str, budget: str = "short") -> str:
    """All notes of a table."""
    table = TABLES[name]
    return "\n".join(footnotes(table, read_table(table, results, budget), budget))


def test_taps_that_kernel_shapes_switched_off(results):
    for seed, off in enumerate((0, 7)):
        change(keep_error(results, "static-joint", seed, 0.3, "table2"), taps_off=[off, 81])
    notes = notes_of(results, "table2")
    assert "`static-joint`: the kernel shapes switched off 0 of 81, 7 of 81 taps." in notes


def test_other_settings_of_the_network_that_a_row_starts_from(results):
    for row in ("finetune", "static", "meta-static", "proto"):
        file = keep_tests(results, row, 0, [[0.5], [0.5]])
        settings = json.loads(file.read_text())["config"]
        if row == "finetune":
            change(file, config={**settings, "lr": 0.5})
    runs = read_table(TABLES["table6"], results, "short")
    assert [name for name in runs if outdated(runs, name)] == [
        "finetune", "static", "meta-static",
    ]  # fmt: skip
    notes = notes_of(results, "table6")
    assert "current ones: `finetune` seed 0; `static` seed 0; `meta-static` seed 0." in notes


def test_a_network_that_was_trained_again(results):
    for seed, theirs in enumerate(("a", "b", None)):
        change(keep_tests(results, "finetune", seed, [[0.5], [0.5]]), network="a")
        change(keep_tests(results, "static", seed, [[0.5], [0.5]]), began_with=theirs)
    notes = notes_of(results, "table6")
    assert "training run of that network than the one in the table: `static` seed 1." in notes


def test_parameters_are_those_of_the_network_that_is_tested(results):
    """Older results count the classifier of the training classes, too; newer ones name both."""
    for row in ("finetune", "dynamic", "proto"):
        keep_tests(results, row, 0, [[0.5], [0.5]])
    change(keep_tests(results, "finetune", 1, [[0.5], [0.5]]), trained_parameters=1234)
    rows = read_table(TABLES["table6"], results, "short")
    plain = 3 * 32 * 9 + 3 * 32 * 32 * 9 + 4 * 2 * 32  # convolutions without bias, and BatchNorm
    assert rows["finetune"].parameters(0) == rows["proto"].parameters(0) == plain
    assert rows["finetune"].parameters(1) == 1234
    assert plain < rows["dynamic"].parameters(0) < 3 * plain


def test_weights_of_an_early_step_are_named(results):
    for row, step in (("finetune", 200), ("maml", 50)):
        file = keep_tests(results, row, 0, [[0.5], [0.5]])
        tests = json.loads(file.read_text())["tests"]
        change(file, tests=[{**test, "weights_step": step} for test in tests])
    notes = notes_of(results, "table6")
    assert "`maml` was tested with the weights that did best" in notes
    assert "those after steps 50 of 200." in notes
    assert "`finetune` was tested with" not in notes


def test_long_training_says_whether_validation_was_still_rising(results):
    file = keep_tests(results, "finetune", 0, [[0.5], [0.5]], budget="long")
    errors = [0.9, 0.8, 0.5, 0.45, 0.42, 0.4, 0.35, 0.36]
    change(file, metrics={"eval": {"step": list(range(8)), "error": errors}})
    keep_tests(results, "proto", 0, [[0.5], [0.5]], budget="long")  # too few validations
    sentence = "third and the last quarter of training, in %: `finetune` 59.0 and 64.5."
    assert sentence in notes_of(results, "table6", "long")
