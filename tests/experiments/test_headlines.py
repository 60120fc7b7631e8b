"""The README's results: computed from the files, and honest about them."""

import pytest
from support.results_cases import keep, keep_error, keep_tests

from experiments.report.headlines import HEADLINES, headlines, pair_rows
from experiments.report.row_results import read_table
from experiments.tables import TABLES


@pytest.fixture
def results(tmp_path):
    return tmp_path / "results"


def rows(results) -> list[list[str]]:
    tables = {name: read_table(TABLES[name], results, "short") for name in ("table4", "table6")}
    return list(pair_rows(tables, "docs/results.md"))


def test_errors_with_difference_budget_and_link(results):
    for seed, (plain, static) in enumerate([(0.30, 0.28), (0.32, 0.29), (0.31, 0.285)]):
        keep_error(results, "cnn", seed, plain)
        keep_error(results, "static-diagonal", seed, static)
    # Differences −2, −3, −2.5: mean −2.5, half 4.303 · 0.5 / √3 = 1.24.
    assert rows(results) == [
        [
            "Static similarity against the plain network: error on CIFAR-10 (lower is better)",
            "28.50 against 31.00, **−2.50 ± 1.24**",
            "[3 seeds, `cnn9` of width 16, 4 epochs](docs/results.md)",
        ]
    ]


def test_a_difference_that_chance_may_have_made_is_not_bold(results):
    for seed, error in enumerate([0.29, 0.33, 0.29]):
        keep_error(results, "cnn", seed, 0.31)
        keep_error(results, "static-diagonal", seed, error)
    ((_, result, _),) = rows(results)
    assert result.endswith(", −0.67 ± 5.74")


def test_one_seed_has_no_interval(results):
    keep_error(results, "cnn", 0, 0.3)
    keep_error(results, "static-diagonal", 0, 0.2)
    ((_, result, budget),) = rows(results)
    assert result.endswith(", −10.00")
    assert budget.startswith("[1 seed, ")


def test_accuracies_for_every_number_of_shots(results):
    for seed in range(2):
        keep_tests(results, "wide-parameters", seed, [[0.2, 0.4], [0.5, 0.6]])
        keep_tests(results, "dynamic", seed, [[0.3, 0.5], [0.4, 0.5]])
    ((_, result, budget),) = rows(results)
    assert result == (
        "1 shot: 40.00 against 30.00, **+10.00 ± 0.00**; "
        "5 shots: 45.00 against 55.00, **−10.00 ± 0.00**"
    )
    assert budget.startswith("[2 seeds, `cnn4` of width 32, 10 epochs]")


def test_one_seed_over_episodes_is_not_bold(results):
    keep_tests(results, "wide-parameters", 0, [[0.2, 0.4], [0.5, 0.6]])
    keep_tests(results, "dynamic", 0, [[0.3, 0.5], [0.4, 0.5]])
    ((_, result, _),) = rows(results)
    assert "+10.00 ± 0.00" in result
    assert "**" not in result


def test_a_row_that_diverged_is_not_compared(results):
    keep_error(results, "cnn", 0, 0.3)
    keep(results, "table4", "static-diagonal", 0, diverged=40)
    ((_, result, _),) = rows(results)
    assert result == "no comparison, because training diverged"


def test_rows_without_a_common_seed_are_left_out(results):
    keep_error(results, "cnn", 0, 0.3)
    keep_error(results, "static-diagonal", 1, 0.3)
    assert rows(results) == []


def test_the_text_is_a_table_and_what_its_signs_mean(results):
    keep_error(results, "cnn", 0, 0.3)
    keep_error(results, "static-diagonal", 0, 0.2)
    tables = {"table4": read_table(TABLES["table4"], results, "short")}
    text = headlines(results, "short", tables)
    assert text.startswith("| comparison | result in %")
    assert "| 20.00 against 30.00, −10.00 | 1 seed, `cnn9`" in text
    assert "](" not in text
    assert "± is the 95 % interval" in text


def test_nothing_to_compare_yet(results):
    keep_error(results, "cnn", 0, 0.3)
    tables = {"table4": read_table(TABLES["table4"], results, "short")}
    assert headlines(results, "short", tables) == "There are no results to compare yet."


def test_headlines_are_rows_of_their_tables():
    assert len(HEADLINES) <= 5
    for headline in HEADLINES:
        table = TABLES[headline.table]
        assert table.row(headline.row) != table.row(headline.other)
        if headline.other != table.baseline:
            assert (headline.row, headline.other) in table.pairs
