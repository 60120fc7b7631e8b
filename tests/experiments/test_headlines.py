"""The README's five lines: computed from the results, and honest about them."""

import pytest
from support.results_cases import keep, keep_error, keep_tests

from experiments.report.headlines import HEADLINES, headlines
from experiments.report.row_results import read_table
from experiments.tables import TABLES


@pytest.fixture
def results(tmp_path):
    return tmp_path / "results"


def lines(results, page="docs/results.md") -> list[str]:
    tables = {name: read_table(TABLES[name], results, "short") for name in ("table4", "table6")}
    return headlines(tables, page).splitlines()


def test_errors_with_difference_verdict_budget_and_link(results):
    for seed, (plain, static) in enumerate([(0.30, 0.28), (0.32, 0.29), (0.31, 0.285)]):
        keep_error(results, "cnn", seed, plain)
        keep_error(results, "static-diagonal", seed, static)
    # Differences −2, −3, −2.5: mean −2.5, half 4.303 · 0.5 / √3 = 1.24.
    assert lines(results) == [
        "- **CIFAR-10, static similarity against the plain network**: error 28.50 ± 1.24 % against "
        "31.00 ± 2.48 %, a difference of −2.50 ± 1.24 points: **better** (95 % intervals, 3 seeds, "
        "`cnn9` of width 16, 4 epochs; [Table 4](docs/results.md))."
    ]


def test_a_difference_that_chance_may_have_made_is_not_separated(results):
    for seed, error in enumerate([0.29, 0.33, 0.29]):
        keep_error(results, "cnn", seed, 0.31)
        keep_error(results, "static-diagonal", seed, error)
    (line,) = lines(results)
    assert "a difference of −0.67 ± 5.74 points: not separated at this budget (" in line
    assert "better" not in line


def test_one_seed_needs_more(results):
    keep_error(results, "cnn", 0, 0.3)
    keep_error(results, "static-diagonal", 0, 0.2)
    (line,) = lines(results)
    assert "a difference of −10.00 points: needs more seeds (95 % intervals, 1 seed," in line


def test_accuracies_for_every_number_of_shots(results):
    for seed in range(2):
        keep_tests(results, "wide-parameters", seed, [[0.2, 0.4], [0.5, 0.6]])
        keep_tests(results, "dynamic", seed, [[0.3, 0.5], [0.4, 0.5]])
    (line,) = lines(results, page=None)
    assert "accuracy with 1 shot 40.00 ± 19.60 % against 30.00 ± 19.60 %, a difference of" in line
    assert "+10.00 ± 0.00 points: **better**; with 5 shots 45.00" in line
    assert "−10.00 ± 0.00 points: **worse** (95 % intervals, 2 seeds, `cnn4` of width 32," in line
    assert line.endswith("10 epochs; Table 6).")


def test_a_row_that_diverged_is_not_compared(results):
    keep_error(results, "cnn", 0, 0.3)
    keep(results, "table4", "static-diagonal", 0, diverged=40)
    (line,) = lines(results)
    assert "no comparison, because training diverged" in line


def test_nothing_to_compare_yet(results):
    keep_error(results, "cnn", 0, 0.3)
    assert lines(results) == ["- There are no results to compare yet."]


def test_headlines_are_rows_of_their_tables():
    assert len(HEADLINES) <= 5
    for headline in HEADLINES:
        table = TABLES[headline.table]
        assert table.row(headline.row) != table.row(headline.other)
        if headline.other != table.baseline:
            assert (headline.row, headline.other) in table.pairs
